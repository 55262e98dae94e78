"""Rows of parameters that are in pieces on all processes, as ``fully_shard`` (FSDP2) keeps them.

A backward pass hands each process its piece of the mean over processes of what they differentiate.
So there is one pass per row of the Jacobian: processes that have a part in the row differentiate
it, the others go along with zero. Each process then holds its columns of all rows.
"""

from __future__ import annotations

from typing import Any, Literal, TypeGuard

import torch
from torch import Tensor, nn

from lightning_jd.aggregators import Balancer, GramianAggregator, Method, Step
from lightning_jd.core._answers import check_values, weights_from
from lightning_jd.core._groups import Groups, split_into_groups
from lightning_jd.core._report import GroupReport, Report, total_gramian
from lightning_jd.core._routes import Progress
from lightning_jd.core._update import Update
from lightning_jd.core.processes._delivery import COMPLETE, Delivery
from lightning_jd.core.processes._failures import answer
from lightning_jd.core.processes._layout import LISTED, Description, Layout, kind_of
from lightning_jd.core.processes._pool import Pool
from lightning_jd.core.rows._base import columns_of, per_parameter
from lightning_jd.core.rows._nonfinite import nonfinite_error
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


class ShardedAccumulation:
    """As :class:`~lightning_jd.core._accumulation.Accumulation`, for parameters in pieces.

    All methods must be called by all processes together.

    Args:
        named: The parameters; the same for all micro-batches.
        which: Which of them are aggregated, see :func:`lightning_jd.engines.select`.

    Attributes:
        dropped: Always 0: a row that is left out on one process only would leave the others alone.

    Raises:
        SetupError: If a parameter is not cut into one piece per process.
    """

    def __init__(self, named: NamedParameters, which: Select = "all") -> None:
        self._pool = Pool(_local(named[0][1]).device)
        _check_pieces(named, self._pool.size)
        self._named, self._which = named, which
        self._pieces: NamedParameters = [(name, _local(tensor)) for name, tensor in named]
        self._kinds: set[tuple[str, int]] = set()  # and the number of tasks per instance
        self._rows: dict[str, tuple[Tensor, int]] = {}  # sum of the rows, and their number
        self._losses: list[Tensor] = []
        self._has_values = True
        self._values: dict[str, Tensor] = {}  # sum of the losses of a row, and of this process only
        self._chosen: set[str] = set()

    def add(self, objectives: Objectives, *, scale: float | Tensor = 1.0) -> None:
        """Differentiate the losses of one micro-batch, one pass per row.

        Args:
            objectives: The losses; their graph is kept.
            scale: See :func:`lightning_jd.core.compute_update`.

        Raises:
            PeerError: If another process has failed.
            NonFiniteError: If a loss of any process is NaN or infinite.
            ArgumentError: If the processes have different tasks.
        """
        answer(self._pieces[0][1].device)  # from here on, no process can do without the others
        layout = self._agree(objectives)
        self._chosen = {name for name, _ in select(objectives, self._named, self._which).selected}
        self._losses.append(objectives.values())
        self._has_values = self._has_values and objectives.has_values
        placed = layout.placed(objectives.values(), self._pool.rank)
        before = [tensor.grad for _, tensor in self._named]
        try:
            for i, name in enumerate(layout.names):
                unit = torch.zeros(layout.m, dtype=objectives.dtype, device=objectives.device)
                unit[i] = self._pool.size  # because the pass ends with a mean
                own = layout.own_weights(unit, self._pool.rank)
                row = self._pass(objectives, own * scale) / scale
                self._keep(layout, name, row, placed[i])
        finally:
            for (_, tensor), gradient in zip(self._named, before, strict=True):
                tensor.grad = gradient

    def update(
        self,
        aggregator: Method,
        *,
        groups: Groups = None,
        overflow: Literal["raise", "mean"] = "raise",
        delivery: Delivery = COMPLETE,
    ) -> Update:
        """Aggregate all rows; arguments and result as in ``Accumulation.update``.

        The gradients are pieces, as the parameters are. They are final: there is nothing to reduce,
        whatever ``delivery`` says.

        Raises:
            NonFiniteError: If a gradient is NaN or infinite.
            ArgumentError: If the aggregator is no weighting of the rows.
        """
        aggregator = aggregator.turn()
        if aggregator.at_features:
            raise ArgumentError(no_features(aggregator))
        if not isinstance(aggregator, GramianAggregator | Balancer):
            raise ArgumentError(needs_whole_rows(aggregator))
        progress = Progress()
        begin = progress.last
        names = tuple(self._rows)
        J = torch.stack([total / count for total, count in self._rows.values()])
        check_values(aggregator, known=self._has_values)
        values = self._all_values(J) if aggregator.uses_values else None
        ((kind, columns),) = self._kinds
        found: dict[str, Tensor] = {}
        if isinstance(aggregator, Balancer):  # the same for all groups
            groups = None
        selected = [pair for pair in self._pieces if pair[0] in self._chosen]
        for group, members in split_into_groups(selected, groups).items():
            part = columns_of(J, self._pieces, members)
            G = self._pool.sum(part @ part.T, "gramian")
            progress.lap("gramian")
            told = Step(names, values, kind, group, columns)
            weights = self._weights(aggregator, G, told, overflow)
            progress.lap("weights")
            found |= per_parameter(weights @ part, members)
            in_group = tuple(name for name, _ in members)
            progress.reports[group] = GroupReport(G, weights, in_group)
        plain = [pair for pair in self._pieces if pair[0] not in self._chosen]
        if plain:
            total = columns_of(J, self._pieces, plain).sum(dim=0)
            found |= per_parameter(total * self._plain_weight(len(J)), plain)
        gradients = [_in_pieces(found[name], tensor) for name, tensor in self._named]
        progress.lap("gradients")
        progress.milliseconds["total"] = 1000 * (progress.last - begin)
        report = Report(
            gramian=(
                total_gramian(progress.reports.values())
                if progress.reports
                else J.new_zeros(len(J), len(J))
            ),
            weights=weights if len(progress.reports) == 1 else None,
            names=names,
            paths={name: "pieces" if name in self._chosen else "plain" for name, _ in self._named},
            milliseconds=progress.milliseconds,
            groups=progress.reports,
            bytes_sent=dict(self._pool.sent),
        )
        value = torch.cat(self._losses).mean()
        return Update([tensor for _, tensor in self._named], gradients, value, report)

    def _agree(self, objectives: Objectives) -> Layout:
        """Learn what the other processes have."""
        kinds, columns = kind_of(objectives)
        listed = kinds[0] in LISTED
        tasks = () if listed else tuple((name, 1) for name in objectives.names)
        description = Description(kinds, columns, tasks, objectives.m if listed else 0)
        told = self._pool.gather((objectives.nonfinite(), description))
        if bad := [*dict.fromkeys(name for names, _ in told for name in names)]:
            raise nonfinite_error("Losses", bad)
        layout = Layout.of([each for _, each in told])
        if 0 in layout.counts or (layout.kind == "tasks" and min(layout.counts) < layout.m):
            raise ArgumentError(
                "With parameters in pieces, all processes must have losses, and of the same tasks, "
                f"got {[[name for name, _ in each.tasks] or each.listed for _, each in told]}. A "
                "process that skips a part of the model leaves the others waiting: return zero "
                "times the outputs instead, or use strategy='ddp'."
            )
        self._kinds.add((layout.kind, layout.columns))
        return layout

    def _pass(self, objectives: Objectives, weights: Tensor) -> Tensor:
        """This process's columns of the mean over processes of ``weights @ rows``."""
        for _, tensor in self._named:
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
            for (_, tensor), (_, piece) in zip(self._named, self._pieces, strict=True)
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

    def _weights(
        self, aggregator: GramianAggregator | Balancer, G: Tensor, told: Step, overflow: str
    ) -> Tensor:
        finite = torch.isfinite(G.diagonal())
        if bool(finite.all()):
            return self._pool.asked_of_first(
                lambda: weights_from(aggregator, G, told), G.diagonal(), "weights"
            )
        if overflow == "mean":
            return torch.full_like(G.diagonal(), 1 / len(G))
        bad = [name for name, fine in zip(told.names, finite.tolist(), strict=True) if not fine]
        raise nonfinite_error("Gradients", bad)

    def _all_values(self, like: Tensor) -> Tensor:
        """The losses of the rows: the mean over micro-batches, over all processes."""
        own = [self._values[name] / count for name, (_, count) in self._rows.items()]
        return self._pool.sum(torch.stack(own).to(like), "losses")

    def _plain_weight(self, m: int) -> float:
        ((kind, columns),) = self._kinds
        return 1.0 if kind == "tasks" else columns / m


def no_features(aggregator: Method) -> str:
    """Why weights from features do not work with parameters in pieces."""
    return (
        f"With parameters in pieces, {aggregator.label} cannot work: a backward pass must run "
        "through the whole graph, and cannot end at the features. Choose the aggregator itself, or "
        "strategy='ddp'."
    )


def needs_whole_rows(aggregator: Method) -> str:
    """Why an aggregator cannot work with parameters in pieces."""
    return (
        "With parameters in pieces, the aggregator must be a weighting of the rows, got "
        f"{aggregator.label}, which needs the whole Jacobian on one "
        "process. Choose another one ('upgrad'), or strategy='ddp'."
    )


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
