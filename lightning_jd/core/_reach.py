"""Which parameters the losses of several pieces reach, and which of them are aggregated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from lightning_jd.engines import (
    NamedParameters,
    Objectives,
    Select,
    leaves_reached,
    select,
    tasks_reaching,
)


class Seen(NamedTuple):
    """Names of parameters: those that losses reach, those of them that are selected, and tasks."""

    here: tuple[str, ...]
    selected: tuple[str, ...]
    tasks: tuple[tuple[str, tuple[str, ...]], ...]


class Reach:
    """Remembers, piece by piece, what one look at the graph of the whole batch would tell.

    Args:
        named: The parameters.
        which: See :func:`lightning_jd.engines.select`. ``"shared"`` are those that two tasks reach,
            be it in different pieces.

    Example:
        >>> import torch
        >>> x, y = (torch.ones(1, requires_grad=True) for _ in "xy")
        >>> reach = Reach([("x", x), ("y", y)], "shared")
        >>> reach.add(Objectives.of({"a": x.sum()}))
        >>> reach.add(Objectives.of({"b": (x * y).sum()}))
        >>> [name for name, _ in reach.selected], [name for name, _ in reach.plain]
        (['x'], ['y'])
    """

    def __init__(self, named: NamedParameters, which: Select = "all") -> None:
        self._named = named
        self._which = which
        self._selected: set[str] = set()
        self._tasks: dict[str, set[str]] = {}  # by parameter, where that decides
        self._here: set[str] = set()
        self._processes: Counter[str] = Counter()

    def add(self, objectives: Objectives) -> None:
        """Look at the graph of one piece."""
        reached = leaves_reached(objectives)
        self._here |= {name for name, tensor in self._named if id(tensor) in reached}
        if self._which != "shared":
            chosen = select(objectives, self._named, self._which).selected
            self._selected |= {name for name, _ in chosen}
            return
        masks = tasks_reaching(objectives)
        for name, tensor in self._named:
            mask = masks.get(id(tensor), 0)
            present = {task for t, task in enumerate(objectives.names) if mask >> t & 1}
            self._tasks[name] = self._tasks.get(name, set()) | present

    @property
    def seen(self) -> Seen:
        """What to tell the other processes."""
        tasks = tuple((name, tuple(sorted(names))) for name, names in sorted(self._tasks.items()))
        return Seen(tuple(sorted(self._here)), tuple(sorted(self._selected)), tasks)

    def hear(self, seen: Iterable[Seen]) -> None:
        """Learn what all processes have seen, so that all do the same."""
        self._processes.clear()
        for here, selected, tasks in seen:
            self._processes.update(here)
            self._selected = self._selected | set(selected)
            for name, present in tasks:
                self._tasks[name] = self._tasks.get(name, set()) | set(present)

    @property
    def reached(self) -> NamedParameters:
        """The parameters that some loss reaches, on any process."""
        anywhere = self._processes or self._here
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
        return processes / self._processes[name] if name in self._here else 0.0

    def _is_selected(self, name: str) -> bool:
        return name in self._selected or len(self._tasks.get(name, ())) > 1
