"""One update from the rows of several pieces: micro-batches, processes, or both.

It equals the update of one process on the whole batch. No process holds the Jacobian of all rows:
see :mod:`lightning_jd.core.processes._exchange`.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lightning_jd.aggregators import Aggregator, Balancer, GramianAggregator, Method
from lightning_jd.core._answers import check_values
from lightning_jd.core._groups import Groups, split_into_groups
from lightning_jd.core._pooled_routes import (
    ByFeatures,
    ByGramian,
    ByJacobian,
    ByValues,
    PooledRoute,
)
from lightning_jd.core._report import Report, total_gramian
from lightning_jd.core._routes import Progress
from lightning_jd.core._update import Update, nothing_reached
from lightning_jd.core.processes._delivery import COMPLETE, Delivery, delivered
from lightning_jd.core.processes._layout import Layout
from lightning_jd.core.processes._pool import Pool
from lightning_jd.core.processes._selection import Reach
from lightning_jd.core.rows._kept import KeptRows
from lightning_jd.core.rows._live import LiveRows
from lightning_jd.core.rows._nonfinite import nonfinite_error, without
from lightning_jd.engines import (
    NamedParameters,
    Objectives,
    Select,
    hooks_silenced,
    jacobian,
    jacobian_with_reasons,
)


class Accumulation:
    """Collects the rows of pieces with :meth:`add`, then turns all of them into one update.

    Args:
        named: The parameters; the same for all pieces.
        select: Which of them are aggregated, see :func:`lightning_jd.core.backward`.
        nonfinite: ``"raise"``, or ``"skip"`` to leave out objectives whose loss or gradient is NaN
            or infinite.
        keeps: Whether rows are kept, (m, n) numbers on this process. Otherwise there is one piece,
            whose graph must live until :meth:`update`, and which is differentiated there.
        memory: What to save where rows are not kept, see :func:`lightning_jd.core.compute_update`.

    Attributes:
        reach: Which parameters the losses reach.

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
        keeps: bool = True,
        memory: Literal["fast", "low"] = "fast",
    ) -> None:
        self.reach = Reach(named, select)
        self._named = named
        self._nonfinite = nonfinite
        self._memory = memory
        self._rows: KeptRows | LiveRows
        self._rows = KeptRows(named) if keeps else LiveRows(None, None, 1.0, memory)
        self._losses: list[Tensor] = []
        self._has_values = True
        self._bad: tuple[str, ...] = ()  # losses of this process that are not finite
        self._skipped: tuple[str, ...] = ()  # what all processes have left out

    def add(self, objectives: Objectives, *, scale: float | Tensor = 1.0) -> None:
        """Take the losses of one piece, and differentiate them if rows are kept.

        Args:
            objectives: The losses of this piece.
            scale: See :func:`lightning_jd.core.compute_update`.
        """
        self.reach.add(objectives)
        self._losses.append(objectives.values())
        self._has_values = self._has_values and objectives.has_values
        bad = objectives.nonfinite()
        remaining = without(objectives, bad) if bad or not objectives.m else objectives
        self._bad += bad
        if isinstance(self._rows, LiveRows):
            self._rows = LiveRows(remaining, objectives, scale, self._memory)
        elif remaining is not None:
            self._rows.add(remaining, self._jacobian(remaining, self._rows, scale), objectives)

    def update(
        self,
        aggregator: Method,
        *,
        groups: Groups = None,
        overflow: Literal["raise", "mean"] = "raise",
        delivery: Delivery = COMPLETE,
    ) -> Update:
        """Aggregate all rows that were collected, on this process and on the others.

        Args:
            aggregator: The method.
            groups: See :func:`lightning_jd.core.compute_update`.
            overflow: See :func:`lightning_jd.core.compute_update`.
            delivery: What the gradients of this process must be.

        Returns:
            The update, whose report is the same on all processes. Zero if every row was dropped.

        Raises:
            NonFiniteError: If a loss or a gradient of any process is NaN or infinite.
            GraphError: If no loss of any process reaches a parameter.
            ArgumentError: If the pieces disagree on what their rows are.
        """
        return self._update(aggregator.turn(), groups, overflow, delivery)

    def _update(
        self,
        aggregator: Method,
        groups: Groups,
        overflow: Literal["raise", "mean"],
        delivery: Delivery,
    ) -> Update:
        progress, pool = Progress(), Pool(self._named[0][1].device)
        begin = progress.last
        with torch.no_grad(), hooks_silenced(tensor for _, tensor in self._named):
            layout = self._agree(pool)
            if layout.m and not self.reach.reached:
                raise nothing_reached(len(self._named))
            by_values = isinstance(aggregator, Balancer) or aggregator.at_features
            members = split_into_groups(
                self.reach.selected,
                None if by_values else groups,  # losses and features are the same for all
            )
            route = self._route(aggregator, pool, layout, delivery)
            if aggregator.uses_values:
                check_values(aggregator, known=self._has_values)
                route.share_values(self._rows.values())
            for group, named in members.items():
                route.look(group, named)
            progress.lap("gramian")
            finite = route.finite()
            if overflow == "raise" and not all(finite):
                if isinstance(self._rows, LiveRows):
                    # Rows that are computed together spoil one another: look at them one by one.
                    self._keep()
                    return self._update(aggregator, groups, overflow, delivery)
                self._drop(route, [i for i, fine in enumerate(finite) if fine])
            for group, named in members.items():
                progress.reports[group] = route.combine(group, named)
            progress.lap("weights")
            if self.reach.plain:
                share = route.like.new_full((route.layout.m,), route.layout.plain_weight)
                mine = delivery.factor(pool) * route.layout.own_weights(share, pool.rank)
                route.own.update(self._rows.gradients(self.reach.plain, mine))
            found = delivered(pool, self.reach, route.own, route.complete, delivery)
            progress.lap("gradients")
        progress.milliseconds["total"] = 1000 * (progress.last - begin)
        tensors = dict(self._named)
        value = torch.cat([route.like.new_zeros(0), *self._losses]).mean()
        report = self._report(progress, route, pool)
        return Update([tensors[name] for name in found], list(found.values()), value, report)

    def _agree(self, pool: Pool) -> Layout:
        """Learn what the other processes have."""
        told = pool.gather((self.reach.seen, self._bad, self._rows.description()))
        self.reach.hear(seen for seen, _, _ in told)
        self._skipped = tuple(name for _, names, _ in told for name in names)
        if self._skipped and self._nonfinite == "raise":
            raise nonfinite_error("Losses", [*dict.fromkeys(self._skipped)])
        return Layout.of([description for _, _, description in told])

    def _route(
        self, aggregator: Method, pool: Pool, layout: Layout, delivery: Delivery
    ) -> PooledRoute:
        wide = any(tensor.dtype.to_real() == torch.float64 for _, tensor in self._named)
        dtype = torch.float64 if wide else torch.float32
        like = torch.zeros((), dtype=dtype, device=self._named[0][1].device)
        if isinstance(aggregator, GramianAggregator):
            by = ByFeatures if aggregator.at_features else ByGramian
            return by(pool, layout, like, self._rows, aggregator, delivery)
        if isinstance(aggregator, Balancer):
            return ByValues(pool, layout, like, self._rows, aggregator, delivery)
        assert isinstance(aggregator, Aggregator)
        return ByJacobian(pool, layout, like, self._keep(), aggregator)

    def _keep(self) -> KeptRows:
        """Form the rows now, if their losses were differentiated later."""
        if isinstance(live := self._rows, LiveRows):
            kept = self._rows = KeptRows(self._named)
            if live.objectives is not None:
                J = self._jacobian(live.objectives, kept, live.scale)
                kept.add(live.objectives, J, live.of)
        assert isinstance(self._rows, KeptRows)
        return self._rows

    def _jacobian(self, objectives: Objectives, rows: KeptRows, scale: float | Tensor) -> Tensor:
        J, slow = jacobian_with_reasons(objectives, self._named, scale=scale)
        rows.slow |= slow
        if objectives.m == 1 or bool(torch.isfinite(J).all()):
            return J
        # Rows that are computed together spoil one another (zero times infinity is not a number).
        return jacobian(objectives, self._named, scale=scale, chunk=1)

    def _drop(self, route: PooledRoute, kept: list[int]) -> None:
        """Leave out the rows that are not finite, or raise."""
        bad = [name for i, name in enumerate(route.layout.names) if i not in kept]
        if self._nonfinite == "raise":
            raise nonfinite_error("Gradients", bad)
        self._skipped += tuple(bad)
        own = route.layout.rows[route.pool.rank].where
        self._keep().keep_only([k for k, i in enumerate(own) if i in kept])
        route.keep_only(kept)

    def _report(self, progress: Progress, route: PooledRoute, pool: Pool) -> Report:
        reports, m = progress.reports, route.layout.m
        plain = {name: "plain" for name, _ in self.reach.plain}
        selected = {name for name, _ in self.reach.selected}
        paths = {name: path for name, path in self._rows.paths.items() if name in selected}
        if isinstance(route, ByValues | ByFeatures) and not paths:
            path = "balanced" if isinstance(route, ByValues) else "features"
            paths = dict.fromkeys(selected, path)
        return Report(
            gramian=total_gramian(reports.values()) if reports else route.like.new_zeros(m, m),
            weights=next(iter(reports.values())).weights if len(reports) == 1 else None,
            names=route.layout.names,
            paths=paths | plain,
            milliseconds=progress.milliseconds,
            groups=reports,
            bytes_sent=dict(pool.sent),
            skipped=self._skipped,
            slow={name: why for name, why in self._rows.slow.items() if name in selected},
        )
