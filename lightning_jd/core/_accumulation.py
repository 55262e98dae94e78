"""One update from the rows of several pieces: micro-batches, processes, or both.

It equals the update of one process on the whole batch. The price is memory: the rows are kept,
(m, n) for m objectives and n parameter entries.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import Literal

import torch
from torch import Tensor

from lightning_jd.aggregators import Aggregator, GramianAggregator
from lightning_jd.core._groups import Groups, split_into_groups
from lightning_jd.core._kept_rows import KeptRows
from lightning_jd.core._nonfinite import nonfinite_error, without
from lightning_jd.core._pool import Pool
from lightning_jd.core._reach import Reach
from lightning_jd.core._report import GroupReport, Report
from lightning_jd.core._update import Update
from lightning_jd.engines import NamedParameters, Objectives, Select, jacobian


class Accumulation:
    """Collects the rows of pieces with :meth:`add`, then turns all of them into one update.

    Args:
        named: The parameters; the same for all pieces.
        select: Which of them are aggregated, see :func:`lightning_jd.core.backward`.
        nonfinite: ``"raise"``, or ``"skip"`` to leave out objectives whose loss or gradient is NaN
            or infinite.

    Attributes:
        reach: Which parameters the losses reach.
        dropped: The number of objectives that were left out.

    Example:
        >>> from lightning_jd.aggregators import Mean
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> collected = Accumulation([("x", x)])
        >>> for piece in (x * x, 3 * x[:1]):  # three instances in two pieces
        ...     collected.add(Objectives.of(piece))
        >>> collected.update(Mean()).gradients  # the mean of (2, 0), (0, 4) and (3, 0)
        [tensor([1.6667, 1.3333])]
    """

    def __init__(
        self,
        named: NamedParameters,
        *,
        select: Select = "all",
        nonfinite: Literal["raise", "skip"] = "raise",
    ) -> None:
        self.dropped = 0
        self.reach = Reach(named, select)
        self._named = named
        self._nonfinite = nonfinite
        self._rows = KeptRows()
        self._losses: list[Tensor] = []
        self._bad: list[str] = []

    def add(self, objectives: Objectives, *, scale: float | Tensor = 1.0) -> None:
        """Differentiate the losses of one piece and keep their rows.

        Args:
            objectives: The losses of this piece.
            scale: See :func:`lightning_jd.core.compute_update`.
        """
        self.reach.add(objectives)
        self._losses.append(objectives.values())
        bad = objectives.nonfinite()
        remaining = objectives if not bad else without(objectives, bad)
        if self._nonfinite == "raise":
            self._bad += bad
        else:
            self.dropped += len(bad)
        if remaining is not None:
            self._rows.add(remaining, self._jacobian(remaining, scale))

    def update(
        self,
        aggregator: Aggregator,
        *,
        groups: Groups = None,
        overflow: Literal["raise", "mean"] = "raise",
        everywhere: bool = True,
    ) -> Update:
        """Aggregate all rows that were collected, on this process and on the others.

        Args:
            aggregator: The method.
            groups: See :func:`lightning_jd.core.compute_update`.
            overflow: See :func:`lightning_jd.core.compute_update`.
            everywhere: Every process delivers the gradient of every parameter. Otherwise only of
                those that its own losses reach, scaled so that the mean over processes is right.

        Returns:
            The update, whose report is the same on all processes. Zero if every row was dropped.

        Raises:
            NonFiniteError: If a loss or a gradient of any process is NaN or infinite.
            ArgumentError: If the pieces disagree on what their rows are.
        """
        begin, pool = time.perf_counter(), Pool()
        self.reach.share(pool)
        if bad := [*dict.fromkeys(name for names in pool.gather(self._bad) for name in names)]:
            raise nonfinite_error("Losses", bad)
        names, J, finite = self._finite(*self._rows.matrix(pool, self._empty()), overflow)
        reports: dict[Hashable, GroupReport] = {}
        found: dict[str, Tensor] = {}
        for group, named in split_into_groups(self.reach.selected, groups).items():
            part = self._columns(J, named)
            direction, weights = _aggregate(part, aggregator, finite, pool)
            found |= _per_parameter(direction, named)
            members = tuple(name for name, _ in named)
            known = (part @ direction, direction @ direction) if weights is None else ()
            reports[group] = GroupReport(part @ part.T, weights, members, *known)
        paths = dict.fromkeys(found, "rows") | {name: "plain" for name, _ in self.reach.plain}
        if self.reach.plain:
            total = self._columns(J, self.reach.plain).sum(dim=0)
            found |= _per_parameter(total * self._rows.plain_weight(len(J)), self.reach.plain)
        report = Report(
            gramian=sum((part.gramian for part in reports.values()), J.new_zeros(len(J), len(J))),
            weights=next(iter(reports.values())).weights if len(reports) == 1 else None,
            names=names,
            paths=paths,
            milliseconds={"total": 1000 * (time.perf_counter() - begin)},
            groups=reports,
        )
        if not everywhere:
            shares = {name: self.reach.share_here(name, pool.size) for name in found}
            found = {name: shares[name] * g for name, g in found.items() if shares[name]}
        tensors, value = dict(self._named), torch.cat(self._losses).mean()
        return Update([tensors[name] for name in found], list(found.values()), value, report)

    def _jacobian(self, objectives: Objectives, scale: float | Tensor) -> Tensor:
        J = jacobian(objectives, self._named, scale=scale)
        if bool(torch.isfinite(J).all()):
            return J
        # Rows that are computed together spoil one another (zero times infinity is not a number).
        return jacobian(objectives, self._named, scale=scale, chunk=1)

    def _empty(self) -> Tensor:
        wide = any(tensor.dtype == torch.float64 for _, tensor in self._named)
        return torch.zeros(
            (0, sum(tensor.numel() for _, tensor in self._named)),
            dtype=torch.float64 if wide else torch.float32,
            device=self._losses[0].device,
        )

    def _finite(
        self, names: tuple[str, ...], J: Tensor, overflow: str
    ) -> tuple[tuple[str, ...], Tensor, bool]:
        """Names and rows to go on with, and whether they are finite."""
        finite = torch.isfinite(J).all(dim=1)
        if bool(finite.all()):
            return names, J, True
        if overflow == "mean":
            return names, J, False
        by_name = list(zip(names, finite.tolist(), strict=True))
        if self._nonfinite == "raise":
            raise nonfinite_error("Gradients", [name for name, fine in by_name if not fine])
        kept = tuple(name for name, fine in by_name if fine)
        self.dropped += len(names) - len(kept)
        return kept, J[finite], True

    def _columns(self, J: Tensor, named: NamedParameters) -> Tensor:
        wanted = {name for name, _ in named}
        if len(wanted) == len(self._named):
            return J
        parts = J.split([tensor.numel() for _, tensor in self._named], dim=1)
        own = zip(parts, self._named, strict=True)
        return torch.cat([part for part, (name, _) in own if name in wanted], dim=1)


def _aggregate(
    J: Tensor, aggregator: Aggregator, finite: bool, pool: Pool
) -> tuple[Tensor, Tensor | None]:
    """The direction (n,) and the weights (m,), the same bits on all processes."""
    if len(J) == 0:
        return J.new_zeros(J.shape[1]), J.new_zeros(0)
    if not finite:
        return J.mean(dim=0), torch.full_like(J[:, 0], 1 / len(J))
    # Only the first process asks the aggregator, whose generator is the one that is saved.
    first = pool.rank == 0
    if isinstance(aggregator, GramianAggregator):
        weights = pool.from_first(aggregator.weights(J @ J.T) if first else J[:, 0].clone())
        return weights @ J, weights
    return pool.from_first(aggregator(J) if first else J[0].clone()), None


def _per_parameter(direction: Tensor, named: NamedParameters) -> dict[str, Tensor]:
    parts = direction.split([tensor.numel() for _, tensor in named])
    return {
        name: part.view(tensor.shape).to(tensor.device, tensor.dtype)
        for part, (name, tensor) in zip(parts, named, strict=True)
    }
