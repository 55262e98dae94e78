"""The ways from the rows of all processes to gradients, as :mod:`._routes` has for one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from functools import partial

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators import Aggregator, Balancer, GramianAggregator, Step
from lightning_jd.core._answers import direction_from, weights_from
from lightning_jd.core._report import GroupReport
from lightning_jd.core.processes._delivery import Delivery
from lightning_jd.core.processes._exchange import all_at_first
from lightning_jd.core.processes._layout import Layout
from lightning_jd.core.processes._pool import Pool
from lightning_jd.core.rows._base import LocalRows, per_parameter
from lightning_jd.core.rows._features import check_overlap, features_gramian
from lightning_jd.core.rows._kept import KeptRows
from lightning_jd.core.rows._live import LiveRows
from lightning_jd.engines import NamedParameters, column_count
from lightning_jd.errors import GraphError


class PooledRoute(ABC):
    """Gramian of each group, then the direction of each group.

    Args:
        pool: The processes.
        layout: Whose rows go where.
        like: A tensor of the type and on the device to compute in.

    Attributes:
        gramians: The Gramian of each group, the same bits on all processes.
        own: Name of a parameter to the gradient of the rows of this process, times the factor that
            the delivery asks for.
        complete: Name of a parameter to the gradient of all rows.
        values: The losses of all rows, where the method asks for them.
    """

    def __init__(self, pool: Pool, layout: Layout, like: Tensor) -> None:
        self.pool, self.layout, self.like = pool, layout, like
        self.gramians: dict[Hashable, Tensor] = {}
        self.own: dict[str, Tensor] = {}
        self.complete: dict[str, Tensor] = {}
        self.values: Tensor | None = None

    def told(self, group: Hashable = None) -> Step:
        """What the step tells a method."""
        layout = self.layout
        return Step(layout.names, self.values, layout.kind, group, layout.columns)

    def share_values(self, own: Sequence[Tensor]) -> None:
        """Have every process know the losses of all rows."""
        values = torch.cat([self.like.new_zeros(0), *(value.to(self.like) for value in own)])
        self.values = self.pool.sum(self.layout.placed(values, self.pool.rank), "losses")

    @abstractmethod
    def look(self, group: Hashable, named: NamedParameters) -> None:
        """Compute the Gramian of a group."""

    @abstractmethod
    def combine(self, group: Hashable, named: NamedParameters) -> GroupReport:
        """Ask the aggregator, and compute the gradients of a group."""

    def finite(self) -> list[bool]:
        """Which rows are finite."""
        # An inner product of two finite rows is finite: the diagonal tells about all of G.
        diagonals = [G.diagonal() for G in self.gramians.values()]
        fine = torch.isfinite(torch.stack(diagonals)).all(dim=0) if diagonals else torch.ones(0)
        return [bool(each) for each in fine.tolist()] or [True] * self.layout.m

    def keep_only(self, kept: Sequence[int]) -> None:
        """Leave out all other rows of the Jacobian; the rows of this process must follow."""
        self.layout = self.layout.without(set(range(self.layout.m)) - set(kept))
        self.gramians = {group: G[kept][:, kept] for group, G in self.gramians.items()}
        self.values = None if self.values is None else self.values[kept]


class Weighting(PooledRoute):
    """For methods that are a weighting of the rows; see :class:`PooledRoute`.

    Args:
        rows: The rows of this process.
        method: Only the first process asks it, whose generator is the one that is saved.
        delivery: What happens to the gradients.
    """

    def __init__(
        self,
        pool: Pool,
        layout: Layout,
        like: Tensor,
        rows: LocalRows,
        method: GramianAggregator | Balancer,
        delivery: Delivery,
    ) -> None:
        super().__init__(pool, layout, like)
        self._rows, self._method, self._delivery = rows, method, delivery

    def _add_own(self, named: NamedParameters, weights: Tensor) -> None:
        """Add the gradients that the rows of this process contribute."""
        mine = self._delivery.factor(self.pool) * self.layout.own_weights(weights, self.pool.rank)
        self.own |= self._rows.gradients(named, mine)


class ByGramian(Weighting):
    """For weights from the Gramian."""

    @override
    def look(self, group: Hashable, named: NamedParameters) -> None:
        G = self.like.new_zeros(self.layout.m, self.layout.m)
        if self.layout.m:
            self._rows.add_products(G, self.pool, self.layout, named)
        self.gramians[group] = self.pool.sum(G, "gramian")

    @override
    def combine(self, group: Hashable, named: NamedParameters) -> GroupReport:
        G, told = self.gramians[group], self.told(group)
        if len(G) and bool(torch.isfinite(G.diagonal()).all()):
            weights = self.pool.asked_of_first(
                lambda: weights_from(self._method, G, told), G.diagonal(), "weights"
            )
        else:
            weights = torch.full_like(G.diagonal(), 1 / max(1, len(G)))
        self._add_own(named, weights)
        return GroupReport(G, weights, _names(named))


class ByFeatures(ByGramian):
    """For weights from the features, which are those of all processes side by side."""

    @override
    def look(self, group: Hashable, named: NamedParameters) -> None:
        G = self.like.new_zeros(self.layout.m, self.layout.m)
        block, problem = None, ""
        try:
            block = self._own_block()
        except GraphError as error:  # all processes must know, or the others would wait
            problem = str(error)
        if said := [each for each in self.pool.gather(problem) if each]:
            raise GraphError(said[0])
        if block is not None:
            self.layout.add_block(G, block.to(G), self.pool.rank, self.pool.rank)
        self.gramians[group] = check_overlap(self.pool.sum(G, "gramian"))

    def _own_block(self) -> Tensor | None:
        if not isinstance(self._rows, LiveRows):
            raise GraphError(
                "Weights from features must have the graph of the whole step, got rows that were "
                "kept of it. Set accumulation='batch' and nonfinite='raise'."
            )
        if self._rows.objectives is None:
            return None
        with torch.enable_grad():
            return features_gramian(self._rows.objectives, self._rows.scale)


class ByValues(Weighting):
    """For balancers: no Gramian, and one ordinary backward pass on each process."""

    @override
    def look(self, group: Hashable, named: NamedParameters) -> None:
        """There is nothing to look at."""

    @override
    def combine(self, group: Hashable, named: NamedParameters) -> GroupReport:
        told = self.told()
        assert told.values is not None
        weights = told.values  # none, if no process has a loss
        if self.layout.m:
            ask = partial(weights_from, self._method, None, told)
            weights = self.pool.asked_of_first(ask, told.values, "weights")
        self._add_own(named, weights)
        return GroupReport(None, weights, _names(named))


class ByJacobian(PooledRoute):
    """For other aggregators: the first process, and no other, gets all rows.

    Args:
        rows: The rows of this process.
        aggregator: The method.
    """

    def __init__(
        self, pool: Pool, layout: Layout, like: Tensor, rows: KeptRows, aggregator: Aggregator
    ) -> None:
        super().__init__(pool, layout, like)
        self._rows, self._aggregator = rows, aggregator
        self._matrices: dict[Hashable, Tensor] = {}

    @override
    def look(self, group: Hashable, named: NamedParameters) -> None:
        blocks = [self._rows.matrix(named).to(self.like)]
        J = all_at_first(self.pool, self.layout, blocks, self.like)
        self._matrices[group] = J
        self.gramians[group] = self.pool.from_first(J @ J.T, "gramian")

    @override
    def keep_only(self, kept: Sequence[int]) -> None:
        super().keep_only(kept)
        self._matrices = {group: J[kept] for group, J in self._matrices.items()}

    @override
    def combine(self, group: Hashable, named: NamedParameters) -> GroupReport:
        G, J = self.gramians[group], self._matrices.pop(group)
        m, n = len(G), sum(column_count(tensor) for _, tensor in named)

        def with_products() -> Tensor:
            if m == 0:
                return G.new_zeros(n)
            is_finite = bool(torch.isfinite(G.diagonal()).all())
            told = self.told(group)
            direction = direction_from(self._aggregator, J, told) if is_finite else J.mean(dim=0)
            return torch.cat([direction, J @ direction])

        known = self.pool.asked_of_first(with_products, G.new_empty(n + m), "gradient")
        direction, products = known.split([n, m])
        self.complete |= per_parameter(direction, named)
        return GroupReport(G, None, _names(named), products, direction @ direction)


def _names(named: NamedParameters) -> tuple[str, ...]:
    return tuple(name for name, _ in named)
