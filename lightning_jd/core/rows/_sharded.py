"""Rows of parameters that are in pieces on all processes, as ``fully_shard`` (FSDP2) keeps them.

Each process holds its columns of all rows. There are two ways to them:

- A backward pass hands each process its piece of the mean over processes of what they
  differentiate, so one pass per row of the Jacobian gives all rows: processes that have a part in
  the row differentiate it, the others go along with zero.
- Rows of instances take one pass: while it gathers layer after layer, the tape notes activations
  and their gradients. The rows that these are the factors of are formed afterwards, layer by layer,
  and cut up among the processes.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators import Balancer, GramianAggregator, Method
from lightning_jd.core.processes._columns import products
from lightning_jd.core.processes._delivery import Delivery, Gradients
from lightning_jd.core.processes._layout import LISTED, Description, Layout, kind_of
from lightning_jd.core.processes._pool import Pool
from lightning_jd.core.rows._base import Rows, columns_of, per_parameter
from lightning_jd.core.rows._gathered import Gathered
from lightning_jd.core.rows._pieces import (
    check_pieces,
    in_pieces,
    is_cut_in_front,
    local,
    whole_of,
)
from lightning_jd.engines import NamedParameters, Objectives, Select, Tape, leaves_reached, select
from lightning_jd.engines.tape import Foresight, foresee
from lightning_jd.errors import ArgumentError, GraphError

#: Micro-batches between two certificates of the same kind of graph.
CHECK_EVERY = 1000
#: Micro-batches since the last certificate of a kind of graph; negative where one has failed.
_standing: dict[Hashable, int] = {}


class ShardedRows(Rows):
    """Each process holds some columns of all rows, those of its pieces of the parameters.

    No objective can be left out: a process that does without one leaves the others waiting.

    Args:
        named: The parameters; the same for all micro-batches.
        select: Which of them are aggregated, see :func:`lightning_jd.engines.select`.
        keeps: Whether there may be several micro-batches, whose rows are kept. Otherwise those of
            instances are formed where they are needed, and as far as they are.

    Raises:
        SetupError: If a parameter is not cut into one piece per process.
    """

    def __init__(
        self, named: NamedParameters, *, select: Select = "all", keeps: bool = True
    ) -> None:
        super().__init__(named, Pool(local(named[0][1]).device), can_skip=False)
        check_pieces(named, self.pool.size)
        self._which, self._keeps = select, keeps
        self._gathered: Gathered | None = None
        self._pieces: NamedParameters = [(name, local(tensor)) for name, tensor in named]
        self._kinds: set[tuple[str, int]] = set()  # and the number of tasks per instance
        self._listed: list[Tensor] = []  # rows that stand for themselves, of each micro-batch
        self._rows: dict[str, tuple[Tensor, int]] = {}  # sum of the rows, and their number
        self._losses: list[Tensor] = []
        # What this process has of the losses: of rows in the list, or ...
        self._listed_values: list[Tensor] = []
        self._values: dict[str, Tensor] = {}  # ... sums that belong to the sums
        self._ways: dict[str, str] = {}
        self._J = torch.empty(0)

    @override
    def add(self, objectives: Objectives, *, scale: float | Tensor = 1.0) -> None:
        """Differentiate the losses of one micro-batch; their graph is kept.

        Raises:
            PeerError: If another process has failed.
            NonFiniteError: If a loss of any process is NaN or infinite.
            ArgumentError: If the processes have different tasks.
        """
        self._micro_batches += 1
        wholes, foresight = self._foresee(objectives, scale)
        layout, obstacle, is_due = self._layout_of(objectives, foresight)
        chosen = {name for name, _ in select(objectives, self.named, self._which).selected}
        self.selected = [pair for pair in self._pieces if pair[0] in chosen]
        self.plain = [pair for pair in self._pieces if pair[0] not in chosen]
        self._losses.append(objectives.values())
        self.has_values = self.has_values and objectives.has_values
        if len(self._kinds) > 1:
            raise ArgumentError(
                "Losses must be of one kind in all micro-batches of a step, got "
                f"{' and '.join(sorted(kind for kind, _ in self._kinds))}."
            )
        placed = layout.placed(objectives.values(), self.pool.rank)
        J = None
        if not obstacle:
            tape = Tape(objectives, wholes, scale=scale, check="off")
            gathered = Gathered(tape, self.named, self.pool, layout, self.like())
            self._ways = gathered.paths
            if not is_due or self._holds(gathered, objectives, scale, layout, foresight):
                self._gathered = None if self._keeps else gathered
                J = gathered.rows() if self._keeps else self.like().new_empty(layout.m, 0)
        if J is None:
            J = self._row_by_row(objectives, scale, layout)
            self._ways = dict.fromkeys((name for name, _ in self.named), "pieces")
        self._keep(layout, J, placed)

    @override
    def unsupported(self, method: Method) -> str | None:
        return unsupported_by_pieces(method)

    @override
    def agree(self, *, exactly: bool, gramian_is_next: bool) -> None:
        ((kind, columns),) = self._kinds
        if self._listed:
            self._J = self._listed[0] if len(self._listed) == 1 else torch.cat(self._listed)
            names = tuple(map(str, range(len(self._J))))
        else:
            self._J = torch.stack([total / count for total, count in self._rows.values()])
            names = tuple(self._rows)
        self.layout = Layout(kind, names, columns, ())
        self.paths = {name: self._ways[name] for name, _ in self.selected}

    @override
    def values(self, *, wanted: bool) -> Tensor | None:
        """The mean over micro-batches, over all processes."""
        if not wanted:
            return None
        own = [self._values[name] / count for name, (_, count) in self._rows.items()]
        found = torch.cat(self._listed_values) if self._listed else torch.stack(own)
        return self.pool.sum(found.to(self._J), "losses")

    @override
    def gramian(self, named: NamedParameters) -> Tensor:
        if self._gathered is not None:
            return self._gathered.gramian({name for name, _ in named})
        part = columns_of(self._J, self._pieces, named)
        return self.pool.sum(products(part), "gramian")

    @override
    def jacobian(self, named: NamedParameters) -> Tensor:
        raise AssertionError("no process holds whole rows: see `unsupported`")

    @override
    def features_gramian(self, features: str | Tensor | None) -> Tensor:
        raise AssertionError("no backward pass ends at the features: see `unsupported`")

    @override
    def combine(self, named: NamedParameters, weights: Tensor, delivery: Delivery) -> Gradients:
        if self._gathered is not None:
            found = self._gathered.combined(weights, {name for name, _ in named})
            return per_parameter(found, named)
        part = columns_of(self._J, self._pieces, named)
        return per_parameter(weights.to(part) @ part, named)

    @override
    def delivered(self, own: Gradients, complete: Gradients, delivery: Delivery) -> Gradients:
        """All of them, in pieces. They are final: nothing is reduced, whatever is asked for."""
        return {name: in_pieces(own[name], tensor) for name, tensor in self.named}

    @override
    def finite_only(self, finite: Sequence[bool]) -> Rows:
        raise self.gradients_error(self._names(finite))

    @override
    def shown(self) -> Tensor:
        return torch.cat(self._losses)

    @override
    def like(self) -> Tensor:
        wide = any(piece.dtype == torch.float64 for _, piece in self._pieces)
        dtype = torch.float64 if wide else torch.float32
        return torch.empty(0, dtype=dtype, device=self.pool.device)

    def _foresee(
        self, objectives: Objectives, scale: float | Tensor
    ) -> tuple[NamedParameters, Foresight]:
        """The whole parameters, as the graph knows them, and whether one pass is enough."""
        wholes = [(name, whole_of(tensor)) for name, tensor in self.named]
        known = [(name, whole) for name, whole in wholes if whole is not None]
        if kind_of(objectives)[0][0] not in LISTED:
            return [], Foresight("tasks take a pass each")
        pairs = zip(self.named, self._pieces, strict=True)
        in_front = all(is_cut_in_front(tensor, piece) for (_, tensor), (_, piece) in pairs)
        if len(known) < len(wholes) or not in_front:
            return [], Foresight("parameters are cut in another way than along their first axis")
        try:
            if leaves_reached(objectives) - {id(whole) for _, whole in known}:
                return [], Foresight("the losses depend on a tensor that is no parameter")
            foresight = foresee(objectives, known, scale)
        except GraphError as error:
            return [], Foresight(str(error))
        if _standing.get(foresight.kind, 0) < 0:
            foresight = Foresight("a certificate has failed")
        return known, foresight

    def _layout_of(self, objectives: Objectives, foresight: Foresight) -> tuple[Layout, str, bool]:
        """Learn what the other processes have in this micro-batch.

        Returns:
            The rows of all; why some process cannot do with one pass; and whether for some of them
            a certificate is due.
        """
        kinds, columns = kind_of(objectives)
        listed = kinds[0] in LISTED
        tasks = () if listed else tuple((name, 1) for name in objectives.names)
        description = Description(kinds, columns, tasks, objectives.m if listed else 0)
        is_due = _standing.get(foresight.kind, 0) % CHECK_EVERY == 0
        said = (objectives.nonfinite(), objectives.m, description)
        answers = self.pool.gather((*said, foresight.obstacle, is_due))
        told = [(bad, m, each) for bad, m, each, *_ in answers]
        obstacle = next((why for *_, why, _ in answers if why), "")
        is_due = any(due for *_, due in answers)
        if not obstacle:
            _standing[foresight.kind] = 1 if is_due else 1 + _standing[foresight.kind]
        if bad := [name for names, _, _ in told for name in names]:
            raise self.losses_error(bad, sum(m for _, m, _ in told))
        layout = Layout.of(tuple(each for _, _, each in told))
        if 0 in layout.counts or (layout.kind == "tasks" and min(layout.counts) < layout.m):
            has = [[name for name, _ in each.tasks] or each.listed for _, _, each in told]
            raise ArgumentError(
                "With parameters in pieces, all processes must have losses, and of the same tasks, "
                f"got {has}. A process that skips a part of the model leaves the others waiting: "
                "return zero times the outputs instead, or use strategy='ddp'."
            )
        self._kinds.add((layout.kind, layout.columns))
        return layout, obstacle, is_due

    def _row_by_row(self, objectives: Objectives, scale: float | Tensor, layout: Layout) -> Tensor:
        """This process's columns of all rows, by one pass for each of them."""
        rows = []
        for i in range(layout.m):
            unit = torch.zeros(layout.m, dtype=objectives.dtype, device=objectives.device)
            unit[i] = 1
            rows.append(self._combined(objectives, scale, layout, unit))
        return torch.stack(rows)

    def _holds(
        self,
        gathered: Gathered,
        objectives: Objectives,
        scale: float | Tensor,
        layout: Layout,
        foresight: Foresight,
    ) -> bool:
        """Whether an ordinary pass agrees with what was noted in one pass.

        Rows are compared in a random combination, and their Gramian by the length of that. What is
        lost by rounding is unknown, so half of the digits must agree.
        """
        generator = torch.Generator().manual_seed(layout.m)
        v = (1 + torch.rand(layout.m, generator=generator)).to(self.like())
        expected = self._combined(objectives, scale, layout, v.to(objectives.dtype))
        types = [whole.dtype for _, tensor in self.named if (whole := whole_of(tensor)) is not None]
        tolerance = max(torch.finfo(dtype).eps for dtype in (*types, objectives.dtype)) ** 0.5
        if gathered.agrees(v, expected, tolerance, by_rows=self._keeps):
            return True
        _standing[foresight.kind] = -(10**9)
        warnings.warn(
            "Rows of instances that were computed together differ from those of single passes. "
            "Parameters in pieces take one backward pass per instance from here on.",
            UserWarning,
            stacklevel=2,
        )
        return False

    def _combined(
        self, objectives: Objectives, scale: float | Tensor, layout: Layout, weights: Tensor
    ) -> Tensor:
        """This process's columns of ``weights @ J``, by one pass of all processes."""
        own = layout.own_weights(weights * self.pool.size, self.pool.rank)  # it ends with a mean
        before = [tensor.grad for _, tensor in self.named]
        try:
            return self._pass(objectives, own * scale) / scale
        finally:
            for (_, tensor), gradient in zip(self.named, before, strict=True):
                tensor.grad = gradient

    def _pass(self, objectives: Objectives, weights: Tensor) -> Tensor:
        """This process's columns of the mean over processes of ``weights @ rows``."""
        for _, tensor in self.named:
            tensor.grad = None
        # All losses, though most have weight zero: every process must run through all of its graph.
        torch.autograd.backward(
            objectives.outputs,  # type: ignore[arg-type]  # tensors and edges may be mixed
            list(objectives.cotangents(weights)),
            retain_graph=True,
        )
        parts = [
            piece.new_zeros(piece.numel()) if tensor.grad is None else local(tensor.grad).flatten()
            for (_, tensor), (_, piece) in zip(self.named, self._pieces, strict=True)
        ]
        return torch.cat([part.to(self.like()) for part in parts])

    def _keep(self, layout: Layout, J: Tensor, losses: Tensor) -> None:
        if layout.kind in LISTED:
            self._listed.append(J)
            self._listed_values.append(losses)
            return
        for name, row, loss in zip(layout.names, J, losses, strict=True):
            total, count = self._rows.get(name, (None, 0))
            self._rows[name] = (row if total is None else total + row, count + 1)
            self._values[name] = loss + self._values.get(name, 0)


def unsupported_by_pieces(method: Method) -> str | None:
    """Why a method cannot work with parameters in pieces, and what can; ``None`` if it can."""
    if method.at_features:
        return (
            f"With parameters in pieces, {method.label} cannot work: a backward pass must run "
            "through the whole graph, and cannot end at the features. Choose the aggregator "
            "itself, or strategy='ddp'."
        )
    if not isinstance(method, GramianAggregator | Balancer):
        return (
            "With parameters in pieces, the aggregator must be a weighting of the rows, got "
            f"{method.label}, which needs the whole Jacobian on one process. Choose another one "
            "('upgrad'), or strategy='ddp'."
        )
    return None
