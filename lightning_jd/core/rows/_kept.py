"""Rows of a batch that comes in pieces, kept until the last of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.core.processes._delivery import Gradients
from lightning_jd.core.processes._exchange import add_by_rows, all_at_first
from lightning_jd.core.processes._layout import Description, kind_of
from lightning_jd.core.processes._pool import Pool
from lightning_jd.core.rows._base import Nonfinite, Rows, columns_of, per_parameter
from lightning_jd.core.rows._store import Store
from lightning_jd.core.rows._whole import WholeRows
from lightning_jd.engines import (
    NamedParameters,
    Objectives,
    Select,
    column_count,
    jacobian,
    jacobian_with_reasons,
)
from lightning_jd.errors import GraphError


class KeptRows(WholeRows):
    """Adds up the rows of tasks (and ranks) and lists the rows of instances.

    Tasks are means over their data, so the row of a task is the mean of its rows in all pieces that
    have it. Instances are the data: their rows are put one below the other. So a process keeps
    (m, n) numbers.

    Arguments are those of :class:`WholeRows`.

    Example:
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> kept = KeptRows([("x", x)])
        >>> for piece in (x * x, 3 * x[:1]):  # three instances in two pieces
        ...     kept.add(Objectives.of(piece))
        >>> kept.agree(exactly=True, gramian_is_next=True)
        >>> kept.jacobian(kept.selected)
        tensor([[2., 0.],
                [0., 4.],
                [3., 0.]])
    """

    def __init__(
        self,
        named: NamedParameters,
        *,
        select: Select = "all",
        nonfinite: Nonfinite = "raise",
        pool: Pool | None = None,
    ) -> None:
        super().__init__(named, select=select, nonfinite=nonfinite, pool=pool)
        self._kinds: set[str] = set()
        self._columns: set[int] = set()  # number of tasks per instance, where that is known
        columns = sum(column_count(tensor) for _, tensor in named)
        self._store = Store(self.like().new_zeros(0, columns))
        self._holes = False

    @override
    def add(self, objectives: Objectives, *, scale: float | Tensor = 1.0) -> None:
        if (finite := self._note(objectives)) is None:
            return
        J = self._rows_of(finite, scale)
        kinds, columns = kind_of(objectives)
        self._holes = self._holes or objectives.m > finite.m
        self._kinds.update(kinds)
        self._columns.update(columns)
        self._store.add(kinds[0], finite.names, J, finite.values())

    @override
    def agree(self, *, exactly: bool, gramian_is_next: bool) -> None:
        super().agree(exactly=exactly, gramian_is_next=gramian_is_next)
        selected = {name for name, _ in self.selected}
        self.paths = dict.fromkeys((name for name, _ in self.selected), "jacobian")
        self.slow = {name: why for name, why in self.slow.items() if name in selected}

    @override
    def gramian(self, named: NamedParameters) -> Tensor:
        G = self.like().new_zeros(self.layout.m, self.layout.m)
        add_by_rows(G, self.pool, self.layout, [self._matrix(named).to(G)])
        return self.pool.sum(self._spoilt(G), "gramian")

    @override
    def jacobian(self, named: NamedParameters) -> Tensor:
        like = self.like()
        return all_at_first(self.pool, self.layout, [self._matrix(named).to(like)], like)

    @override
    def features_gramian(self, features: str | Tensor | None) -> Tensor:
        raise GraphError(
            "Weights from features must have the graph of the whole step, got rows that were kept "
            "of it. Set accumulation='batch' and nonfinite='raise'."
        )

    @override
    def finite_only(self, finite: Sequence[bool]) -> Rows:
        bad = self._names(finite)
        if self._nonfinite == "raise":
            self._check_losses()
            raise self.gradients_error(bad)
        self.skipped += tuple(bad)
        own = self.layout.rows[self.pool.rank].where
        self._store.keep([k for k, i in enumerate(own) if finite[i]])
        self.layout = self.layout.without({i for i, fine in enumerate(finite) if not fine})
        return self

    @override
    def _description(self) -> Description:
        return Description(
            kinds=tuple(sorted(self._kinds)),
            columns=tuple(sorted(self._columns)),
            tasks=tuple((name, count) for name, (_, count) in self._store.sums.items()),
            listed=self._store.listed,
            holes=self._holes,
        )

    @override
    def _own_values(self) -> list[Tensor]:
        return self._store.losses()

    @override
    def _own_gradients(self, named: NamedParameters, weights: Tensor) -> Gradients:
        J = self._matrix(named)
        if len(J) == 1:  # the row of a rank becomes its gradient: it is asked for once
            return per_parameter(J[0].mul_(weights.to(J)[0]), named)
        return per_parameter(weights.to(J) @ J, named)

    def _rows_of(self, objectives: Objectives, scale: float | Tensor) -> Tensor:
        J, slow = jacobian_with_reasons(objectives, self.named, scale=scale)
        self.slow |= slow
        if objectives.m == 1 or not self._looks_at_once or bool(torch.isfinite(J).all()):
            return J
        # Rows that are computed together spoil one another (zero times infinity is not a number).
        return jacobian(objectives, self.named, scale=scale, chunk=1)

    def _matrix(self, named: NamedParameters) -> Tensor:
        """The columns of some parameters, shape (rows of this process, their entries)."""
        return columns_of(self._store.rows(), self.named, named)
