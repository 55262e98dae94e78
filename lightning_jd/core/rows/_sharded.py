"""Rows of parameters that are in pieces on all processes, as ``fully_shard`` (FSDP2) keeps them.

A backward pass hands each process its piece of the mean over processes of what they differentiate.
So there is one pass per row of the Jacobian: processes that have a part in the row differentiate
it, the others go along with zero. Each process then holds its columns of all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from typing_extensions import override

from lightning_jd.aggregators import Balancer, GramianAggregator, Method
from lightning_jd.core.processes._delivery import Delivery, Gradients
from lightning_jd.core.processes._layout import LISTED, Description, Layout, kind_of
from lightning_jd.core.processes._pool import Pool
from lightning_jd.core.rows._base import Rows, columns_of, per_parameter
from lightning_jd.engines import NamedParameters, Objectives, Select, select
from lightning_jd.errors import ArgumentError, SetupError


def show_pieces(module: nn.Module) -> None:
    """Have ``module.parameters()`` give pieces again, where a forward pass has left whole tensors.

    A backward pass gathers them anew, as it does for modules that are resharded after the forward
    pass anyway.
    """
    for each in module.modules():
        if any(cls.__name__ == "FSDPModule" for cls in type(each).__mro__):
            each.reshard()  # type: ignore[operator]  # a method that `fully_shard` has added


def is_sharded(named: NamedParameters) -> bool:
    """Whether some of the parameters are in pieces on several processes."""
    return any(_is_distributed(tensor) for _, tensor in named)


class ShardedRows(Rows):
    """Each process holds some columns of all rows, those of its pieces of the parameters.

    No objective can be left out: a process that does without one leaves the others waiting.

    Args:
        named: The parameters; the same for all micro-batches.
        select: Which of them are aggregated, see :func:`lightning_jd.engines.select`.

    Raises:
        SetupError: If a parameter is not cut into one piece per process.
    """

    def __init__(self, named: NamedParameters, *, select: Select = "all") -> None:
        super().__init__(named, Pool(_local(named[0][1]).device), can_skip=False)
        _check_pieces(named, self.pool.size)
        self._which = select
        self._pieces: NamedParameters = [(name, _local(tensor)) for name, tensor in named]
        self._kinds: set[tuple[str, int]] = set()  # and the number of tasks per instance
        self._rows: dict[str, tuple[Tensor, int]] = {}  # sum of the rows, and their number
        self._losses: list[Tensor] = []
        self._values: dict[str, Tensor] = {}  # sum of the losses of a row, and of this process only
        self._J: Tensor

    @override
    def add(self, objectives: Objectives, *, scale: float | Tensor = 1.0) -> None:
        """Differentiate the losses of one micro-batch, one pass per row; their graph is kept.

        Raises:
            PeerError: If another process has failed.
            NonFiniteError: If a loss of any process is NaN or infinite.
            ArgumentError: If the processes have different tasks.
        """
        self._micro_batches += 1
        layout = self._layout_of(objectives)
        chosen = {name for name, _ in select(objectives, self.named, self._which).selected}
        self.selected = [pair for pair in self._pieces if pair[0] in chosen]
        self.plain = [pair for pair in self._pieces if pair[0] not in chosen]
        self._losses.append(objectives.values())
        self.has_values = self.has_values and objectives.has_values
        placed = layout.placed(objectives.values(), self.pool.rank)
        before = [tensor.grad for _, tensor in self.named]
        try:
            for i, name in enumerate(layout.names):
                unit = torch.zeros(layout.m, dtype=objectives.dtype, device=objectives.device)
                unit[i] = self.pool.size  # because the pass ends with a mean
                own = layout.own_weights(unit, self.pool.rank)
                row = self._pass(objectives, own * scale) / scale
                self._keep(layout, name, row, placed[i])
        finally:
            for (_, tensor), gradient in zip(self.named, before, strict=True):
                tensor.grad = gradient

    @override
    def unsupported(self, method: Method) -> str | None:
        return unsupported_by_pieces(method)

    @override
    def agree(self, *, exactly: bool) -> None:
        ((kind, columns),) = self._kinds
        self.layout = Layout(kind, tuple(self._rows), columns, ())
        self._J = torch.stack([total / count for total, count in self._rows.values()])
        self.paths = dict.fromkeys((name for name, _ in self.selected), "pieces")

    @override
    def values(self, *, wanted: bool) -> Tensor | None:
        """The mean over micro-batches, over all processes."""
        if not wanted:
            return None
        own = [self._values[name] / count for name, (_, count) in self._rows.items()]
        return self.pool.sum(torch.stack(own).to(self._J), "losses")

    @override
    def gramian(self, named: NamedParameters) -> Tensor:
        part = columns_of(self._J, self._pieces, named)
        return self.pool.sum(part @ part.T, "gramian")

    @override
    def jacobian(self, named: NamedParameters) -> Tensor:
        raise AssertionError("no process holds whole rows: see `unsupported`")

    @override
    def features_gramian(self, features: str | Tensor | None) -> Tensor:
        raise AssertionError("no backward pass ends at the features: see `unsupported`")

    @override
    def combine(self, named: NamedParameters, weights: Tensor, delivery: Delivery) -> Gradients:
        part = columns_of(self._J, self._pieces, named)
        return per_parameter(weights.to(part) @ part, named)

    @override
    def delivered(self, own: Gradients, complete: Gradients, delivery: Delivery) -> Gradients:
        """All of them, in pieces. They are final: nothing is reduced, whatever is asked for."""
        return {name: _in_pieces(own[name], tensor) for name, tensor in self.named}

    @override
    def finite_only(self, finite: Sequence[bool]) -> Rows:
        raise self.gradients_error(self._names(finite))

    @override
    def shown(self) -> Tensor:
        return torch.cat(self._losses)

    @override
    def like(self) -> Tensor:
        return self._J.new_empty(0)

    def _layout_of(self, objectives: Objectives) -> Layout:
        """Learn what the other processes have in this micro-batch."""
        kinds, columns = kind_of(objectives)
        listed = kinds[0] in LISTED
        tasks = () if listed else tuple((name, 1) for name in objectives.names)
        description = Description(kinds, columns, tasks, objectives.m if listed else 0)
        told = self.pool.gather((objectives.nonfinite(), objectives.m, description))
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
        return layout

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
        wide = any(piece.dtype == torch.float64 for _, piece in self._pieces)
        dtype = torch.float64 if wide else torch.float32
        parts = [
            piece.new_zeros(piece.numel()) if tensor.grad is None else _local(tensor.grad).flatten()
            for (_, tensor), (_, piece) in zip(self.named, self._pieces, strict=True)
        ]
        return torch.cat([part.to(dtype) for part in parts])

    def _keep(self, layout: Layout, name: str, row: Tensor, loss: Tensor) -> None:
        if len(self._kinds) > 1:
            raise ArgumentError(
                "Losses must be of one kind in all micro-batches of a step, got "
                f"{' and '.join(sorted(kind for kind, _ in self._kinds))}."
            )
        if layout.kind in LISTED:
            name = str(len(self._rows))
        total, count = self._rows.get(name, (torch.zeros_like(row), 0))
        self._rows[name] = (total + row, count + 1)
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


def _check_pieces(named: NamedParameters, processes: int) -> None:
    for name, tensor in named:
        if not _is_distributed(tensor):
            found = "is not in pieces at all"
        elif tensor.device_mesh.ndim != 1 or tensor.device_mesh.size() != processes:
            found = f"is on {tensor.device_mesh}"
        elif not tensor.placements[0].is_shard():
            found = f"is placed by {tensor.placements[0]}"
        else:
            continue
        raise SetupError(
            f"Every parameter must be cut into one piece for each of the {processes} processes, "
            f"got {name!r}, which {found}. Call `fully_shard` on the whole module last, with a "
            "mesh of one dimension over all processes and without tensor parallelism."
        )


def _is_distributed(tensor: Tensor) -> TypeGuard[Any]:
    """Whether it is a ``DTensor``, told without the import, which takes seconds."""
    return hasattr(tensor, "device_mesh")


def _local(tensor: Tensor) -> Tensor:
    """The piece of this process itself, not a copy."""
    with torch.no_grad():
        piece: Tensor = tensor.to_local() if _is_distributed(tensor) else tensor
    return piece


def _in_pieces(piece: Tensor, like: Tensor) -> Tensor:
    gradient = torch.empty_like(like)
    _local(gradient).copy_(piece)
    return gradient
