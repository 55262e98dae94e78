"""The parameters that losses of any process reach, and the gradients that each one delivers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_jd.core.processes._pool import Pool
from lightning_jd.engines import (
    NamedParameters,
    Objectives,
    Select,
    leaves_reached,
    select,
    tasks_reaching,
)
from lightning_jd.errors import ArgumentError

Gradients = dict[str, Tensor]


class Delivery(NamedTuple):
    """What happens to the gradients after this process has computed them.

    Attributes:
        everywhere: Every process must deliver the gradient of every parameter that some process
            reaches. Otherwise only of those that its own losses reach.
        averaged: The mean over processes is taken later, as DistributedDataParallel does. Otherwise
            each process delivers the gradient of all rows, and a mean of equals changes nothing.
    """

    everywhere: bool = True
    averaged: bool = False


#: Every process gets the whole gradient of every parameter.
COMPLETE = Delivery()


class Reached(NamedTuple):
    """Names of parameters that losses reach: in any micro-batch, in the last, selected, by task."""

    here: tuple[str, ...]
    last: tuple[str, ...]
    selected: tuple[str, ...]
    tasks: tuple[tuple[str, tuple[str, ...]], ...]


class PooledSelection:
    """The selection of the whole batch, from the graphs of its micro-batches on all processes.

    Args:
        named: The parameters.
        which: See :func:`lightning_jd.engines.select`. ``"shared"`` are those that two tasks reach,
            be it in different micro-batches.

    Example:
        >>> import torch
        >>> x, y = (torch.ones(1, requires_grad=True) for _ in "xy")
        >>> selection = PooledSelection([("x", x), ("y", y)], "shared")
        >>> selection.add(Objectives.of({"a": x.sum()}))
        >>> selection.add(Objectives.of({"b": (x * y).sum()}))
        >>> [name for name, _ in selection.selected], [name for name, _ in selection.plain]
        (['x'], ['y'])
    """

    def __init__(self, named: NamedParameters, which: Select = "all") -> None:
        self._named = named
        self._which = which
        self._selected: set[str] = set()
        self._tasks: dict[str, set[str]] = {}  # by parameter, where that decides
        #: Reached by the losses of this process, in any micro-batch.
        self.here: set[str] = set()
        self._last: set[str] = set()  # in the last one, the only one that DDP searches
        self._anywhere: set[str] = set()
        self._processes: Counter[str] = Counter()
        #: Whether the last micro-batch of some process reaches no parameter at all.
        self.idle = False
        #: Reached in an earlier micro-batch of some process, but not in its last.
        self.late: set[str] = set()

    def add(self, objectives: Objectives) -> None:
        """Search the graph of one micro-batch."""
        is_shared = self._which == "shared"
        masks = tasks_reaching(objectives) if is_shared else {}
        reached = masks.keys() if is_shared else leaves_reached(objectives)
        self._last = {name for name, tensor in self._named if id(tensor) in reached}
        self.here |= self._last
        if not is_shared:
            chosen = select(objectives, self._named, self._which).selected
            self._selected |= {name for name, _ in chosen}
            return
        for name, tensor in self._named:
            mask = masks.get(id(tensor), 0)
            present = {task for t, task in enumerate(objectives.names) if mask >> t & 1}
            self._tasks[name] = self._tasks.get(name, set()) | present

    @property
    def seen(self) -> Reached:
        """What the other processes receive."""
        tasks = tuple((name, tuple(sorted(names))) for name, names in sorted(self._tasks.items()))
        here, last, selected = map(sorted, (self.here, self._last, self._selected))
        return Reached(tuple(here), tuple(last), tuple(selected), tasks)

    def hear(self, seen: Iterable[Reached]) -> None:
        """Merge what all processes have seen."""
        self._processes.clear()
        for here, last, selected, tasks in seen:
            self._anywhere |= set(here)
            self.idle = self.idle or not last
            self.late |= set(here) - set(last)
            self._processes.update(last)
            self._selected = self._selected | set(selected)
            for name, present in tasks:
                self._tasks[name] = self._tasks.get(name, set()) | set(present)

    @property
    def reached(self) -> NamedParameters:
        """The parameters that some loss reaches, on any process."""
        anywhere = self._anywhere or self.here
        return [pair for pair in self._named if pair[0] in anywhere]

    @property
    def selected(self) -> NamedParameters:
        """Those that are aggregated."""
        return [pair for pair in self.reached if self._is_selected(pair[0])]

    @property
    def plain(self) -> NamedParameters:
        """Those that keep their plain gradient."""
        return [pair for pair in self.reached if not self._is_selected(pair[0])]

    def share_here(self, name: str, processes: int) -> float:
        """The factor of a gradient that only the processes whose losses reach it deliver.

        Their mean over all processes is then the gradient; 0 if this process is none of them.
        """
        return processes / self._processes[name] if name in self._last else 0.0

    def check_deliverable(self) -> None:
        """Raise, on all processes alike, where ``find_unused_parameters=True`` would wait.

        DistributedDataParallel searches the last micro-batch only. It takes no gradient of a
        parameter that this does not reach, and does not begin before the first gradient.
        """
        lost = [name for name in sorted(self.late) if not self._processes[name]]
        if lost or self.idle:
            what = f"none does for {lost[0]}" if lost else "one has no loss at all"
            raise ArgumentError(
                "With `find_unused_parameters=True`, each process must have a loss, and those of "
                "the last micro-batch of a step must reach what those before have reached on some "
                f"process, but {what}. Leave the option out: it is not needed here."
            )

    def _is_selected(self, name: str) -> bool:
        return name in self._selected or len(self._tasks.get(name, ())) > 1


def delivered(
    pool: Pool,
    selection: PooledSelection,
    own: Gradients,
    complete: Gradients,
    delivery: Delivery,
) -> Gradients:
    """The gradients that this process delivers.

    Args:
        pool: The processes.
        selection: Which parameters the losses reach, here and elsewhere.
        own: The gradients of the rows of this process; times the number of processes if a mean
            over them follows.
        complete: The gradients of the other parameters, of all rows.
        delivery: What happens to them.
    """
    if not delivery.everywhere:
        selection.check_deliverable()
    rest = [(name, tensor) for name, tensor in selection.reached if name not in complete]
    # DDP ignores late gradients on this process, so the others deliver the full sum.
    late = set() if delivery.everywhere else selection.late
    taken = [pair for pair in rest if not delivery.averaged or pair[0] in late]
    complete = complete | _sum(pool, taken, own, delivery)
    found = {}
    for name, tensor in selection.reached:
        share = 1.0 if delivery.everywhere else selection.share_here(name, pool.size)
        if share and name in complete:
            found[name] = complete[name] if share == 1 else share * complete[name]
        elif share:
            found[name] = own[name] if name in own else torch.zeros_like(tensor)
    return found


def _sum(pool: Pool, named: NamedParameters, own: Gradients, delivery: Delivery) -> Gradients:
    """The gradients of all rows, in one message per type."""
    found = {name: own.get(name, tensor.detach().new_zeros(tensor.shape)) for name, tensor in named}
    if pool.size == 1:
        return found
    found = {name: g.to_dense() if g.is_sparse else g for name, g in found.items()}
    for dtype in dict.fromkeys(gradient.dtype for gradient in found.values()):
        some = [name for name, gradient in found.items() if gradient.dtype == dtype]
        flat = pool.sum(torch.cat([found[name].reshape(-1) for name in some]), "gradient")
        flat /= pool.size if delivery.averaged else 1
        parts = flat.split([found[name].numel() for name in some])
        found |= {name: part.view_as(found[name]) for name, part in zip(some, parts, strict=True)}
    return found
