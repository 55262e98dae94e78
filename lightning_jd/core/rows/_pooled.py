"""Rows of several processes whose graphs are alive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from torch import Tensor
from typing_extensions import override

from lightning_jd.core.processes._delivery import Deferred, Delivery, Gradients
from lightning_jd.core.processes._exchange import all_at_first
from lightning_jd.core.processes._gramian import Held, gramian_of
from lightning_jd.core.processes._layout import LISTED, Description, kind_of
from lightning_jd.core.rows._base import Nonfinite, Rows
from lightning_jd.core.rows._features import features_gramian
from lightning_jd.core.rows._kept import KeptRows
from lightning_jd.core.rows._live import ordinary_gradients
from lightning_jd.core.rows._whole import WholeRows
from lightning_jd.engines import (
    NamedParameters,
    Objectives,
    Select,
    Tape,
    column_count,
    holds_custom,
    jacobian_with_reasons,
    slow_parameters,
)
from lightning_jd.engines.tape import Contribution
from lightning_jd.errors import GraphError


class PooledRows(WholeRows):
    """Differentiates the losses of one micro-batch of each process when their rows are asked for.

    A process without losses adds none, and takes part all the same.

    Args:
        named: The parameters.
        select: Which of them are aggregated, see :func:`lightning_jd.engines.select`.
        nonfinite: What to do with objectives that are NaN or infinite.
        memory: ``"fast"`` keeps activation gradients (and the rows of tasks where these are
            smaller) from the Gramian to the gradients; ``"low"`` works on some parameters at a
            time, with passes for each of them, and ends with an ordinary backward pass.
    """

    def __init__(
        self,
        named: NamedParameters,
        *,
        select: Select = "all",
        nonfinite: Nonfinite = "raise",
        memory: Literal["fast", "low"] = "fast",
    ) -> None:
        super().__init__(named, select=select, nonfinite=nonfinite)
        self._memory = memory
        self._scale: float | Tensor = 1.0
        self._given: Objectives | None = None
        self._objectives: Objectives | None = None  # without those that are not finite
        self._tapes: dict[str, Tape] = {}  # by the first parameter

    @override
    def add(self, objectives: Objectives, *, scale: float | Tensor = 1.0) -> None:
        self._given, self._scale = objectives, scale
        self._objectives = self._note(objectives)

    @override
    def agree(self, *, exactly: bool, gramian_is_next: bool) -> None:
        super().agree(exactly=exactly, gramian_is_next=gramian_is_next)
        selected = [name for name, _ in self.selected]
        if any([name for name, _ in tape.named] != selected for tape in self._tapes.values()):
            self._tapes.clear()  # others reach other parameters

    @override
    def _begin(self) -> None:
        selected = self._selection.selected
        if not selected or self._objectives is None or self._memory == "low":
            return
        # One that answers with an error takes part in nothing else, and SyncBatchNorm would wait.
        if not holds_custom(self._objectives):
            tape = self._tapes[selected[0][0]] = Tape(self._objectives, selected, scale=self._scale)
            tape.contributions()

    @override
    def gramian(self, named: NamedParameters) -> Tensor:
        names = () if self._objectives is None else self._objectives.names
        G, formed = gramian_of(
            lambda: map(self._held, self._at_a_time(named)),
            *(names, self.pool, self.layout, self._agreed, self.like()),
        )
        if (tape := self._tapes.get(named[0][0])) is not None:
            for pair in formed:
                tape.hold(*pair)
        return G

    @override
    def jacobian(self, named: NamedParameters) -> Tensor:
        like = self.like()
        J = like.new_zeros(0, sum(column_count(tensor) for _, tensor in named))
        if self._objectives is not None:
            J, slow = jacobian_with_reasons(self._objectives, named, scale=self._scale)
            self.slow |= slow
        self.paths |= {name: "jacobian" for name, _ in named}
        return all_at_first(self.pool, self.layout, [J.to(like)], like)

    @override
    def features_gramian(self, features: str | Tensor | None) -> Tensor:
        """That of the features of all processes side by side."""
        G = self.like().new_zeros(self.layout.m, self.layout.m)
        problem = ""
        if self._objectives is not None:
            try:
                block = features_gramian(self._objectives, self._scale, features, self.named)
                self.layout.add_block(G, block.to(G), self.pool.rank, self.pool.rank)
            except GraphError as error:  # all processes must know, or the others would wait
                problem = str(error)
        if said := [each for each in self.pool.gather(problem) if each]:
            raise GraphError(said[0])
        return self.pool.sum(G, "gramian")

    @override
    def finite_only(self, finite: Sequence[bool]) -> Rows:
        # Rows that are computed together spoil one another: look at them one by one.
        kept = KeptRows(self.named, select=self._which, nonfinite=self._nonfinite, pool=self.pool)
        if self._given is not None:
            kept.add(self._given, scale=self._scale)
        kept.agree(exactly=True, gramian_is_next=True)
        return kept

    @override
    def _description(self) -> Description:
        kinds, columns = ((), ()) if self._given is None else kind_of(self._given)
        names = () if self._objectives is None else self._objectives.names
        if set(kinds) & set(LISTED):
            holes = self._given is not None and self._given.m > len(names)
            return Description(kinds, columns, tasks=(), listed=len(names), holes=holes)
        return Description(kinds, columns, tasks=tuple((name, 1) for name in names), listed=0)

    @override
    def _own_values(self) -> list[Tensor]:
        return [] if self._objectives is None else [self._objectives.values()]

    @override
    def combine(self, named: NamedParameters, weights: Tensor, delivery: Delivery) -> Gradients:
        if self.as_plain and named[0][0] in self._tapes and self._tapes[named[0][0]].is_hooked:
            self._tapes.pop(named[0][0])
        if not delivery.overlaps or named[0][0] not in self._tapes:
            return super().combine(named, weights, delivery)
        tape = self._tapes.pop(named[0][0])
        for some, compute in tape.gradients_in_turn(self._own_weights(weights, delivery)):
            self.deferred.append(Deferred(tuple([named[k][0] for k in some]), compute))
        return {}

    @override
    def _own_gradients(self, named: NamedParameters, weights: Tensor) -> Gradients:
        if self._objectives is None or not self._reaches(named):
            return {}
        tape = self._tapes.pop(named[0][0], None)  # and let go of it: the next one needs memory too
        if tape is None:
            return ordinary_gradients(self._objectives, named, weights, self._scale, True)
        own = zip(named, tape.gradients(weights), strict=True)
        return {name: gradient for (name, _), gradient in own if gradient is not None}

    def _at_a_time(self, named: NamedParameters) -> Iterator[NamedParameters]:
        """All parameters, or so many at a time that their rows are not more than twice all."""
        limit = 2 * sum(tensor.numel() for _, tensor in named)
        some: NamedParameters = []
        for name, tensor in named:
            size = self.layout.m * (tensor.numel() + sum(other.numel() for _, other in some))
            if some and size > limit and self._memory == "low":
                yield some
                some = []
            some.append((name, tensor))
        yield some

    def _held(self, named: NamedParameters) -> Held:
        """What this process has of the rows of some parameters."""
        parts: list[list[Contribution]] = [[] for _ in named]
        sizes = [column_count(tensor) for _, tensor in named]
        held = Held(tuple([name for name, _ in named]), sizes, parts)
        if self._objectives is None or not self._reaches(named):
            return held
        tape = self._tapes.get(named[0][0]) or Tape(self._objectives, named, scale=self._scale)
        for contribution in tape.contributions():
            parts[contribution.placements[0].parameter].append(contribution)
        self.paths |= tape.paths
        self.slow |= slow_parameters(tape)
        if self._memory == "fast":
            self._tapes[named[0][0]] = tape
        return held

    def _reaches(self, named: NamedParameters) -> bool:
        """Whether the losses of this process reach one of the parameters."""
        return any(name in self._selection.here for name, _ in named)
