"""Rows whose graphs are alive, of one process or of several: the Jacobian is not stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.core.processes._columns import all_at_first
from lightning_jd.core.processes._delivery import Delivery, Gradients
from lightning_jd.core.processes._gramian import LocalParts, gramian_of
from lightning_jd.core.processes._layout import LISTED, Description, Layout, kind_of
from lightning_jd.core.processes._pool import Pool
from lightning_jd.core.rows._accumulated import AccumulatedRows
from lightning_jd.core.rows._base import Nonfinite, Rows
from lightning_jd.core.rows._features import features_gramian
from lightning_jd.engines import (
    NamedParameters,
    Objectives,
    Select,
    Tape,
    TapeOptions,
    check_not_freed,
    column_count,
    holds_custom,
    holds_hooks,
    jacobian_with_reasons,
    leaves_reached,
    mark_as_freed,
    select,
    slow_parameters,
)
from lightning_jd.engines.tape import Contribution, SquaredNorms
from lightning_jd.errors import GraphError

#: The options of a tape that is not told otherwise.
DEFAULT_OPTIONS = TapeOptions()


class GraphRows(Rows):
    """Differentiates the losses of one micro-batch of each process when a method needs the rows.

    A process without losses adds none, and takes part all the same. Arguments are those of
    :func:`lightning_jd.core.rows.collect`. With ``memory="low"``, several processes work on some
    parameters at a time.
    """

    def __init__(
        self,
        named: NamedParameters,
        *,
        pool: Pool | None = None,
        select: Select = "all",
        nonfinite: Nonfinite = "raise",
        options: TapeOptions = DEFAULT_OPTIONS,
        retain_graph: bool = False,
    ) -> None:
        super().__init__(named, pool=pool, select=select, nonfinite=nonfinite)
        self._is_alone = self.pool.size == 1
        self._options, self._frees = options, self._is_alone and not retain_graph
        self._retain_graph = not self._frees or self.skips  # AccumulatedRows differentiate again
        self._tapes: dict[str, Tape] = {}  # by the first parameter
        self._given: Objectives | None = None
        self._objectives: Objectives | None = None  # without those that are not finite
        self._scale: float | Tensor = 1.0
        self._gramian_is_next = False

    @override
    def add(self, objectives: Objectives, *, scale: float | Tensor = 1.0) -> None:
        self._given, self._scale = objectives, scale
        if self._is_alone:
            check_not_freed(objectives)
            self._objectives, self.has_values = objectives, objectives.has_values
        else:
            self._objectives = self._note(objectives)

    @override
    def agree(self, *, exactly: bool, gramian_is_next: bool) -> None:
        self._gramian_is_next = gramian_is_next
        if not self._is_alone:
            super().agree(exactly=exactly, gramian_is_next=gramian_is_next)
            selected = [name for name, _ in self.selected]
            if any([name for name, _ in tape.named] != selected for tape in self._tapes.values()):
                self._tapes.clear()  # others reach other parameters
            return
        assert self._objectives is not None
        chosen = select(self._objectives, self.named, self._which)
        self.layout = Layout.of_one_process(self._objectives)
        self.selected, self.plain = chosen.selected, chosen.plain
        if exactly:
            reached = leaves_reached(self._objectives)
            self.selected = [pair for pair in self.selected if id(pair[1]) in reached]

    @override
    def _own_formats(self) -> tuple[Any, ...] | None:
        if self._objectives is None:
            return (), ()
        selected = self._selection.selected
        # SyncBatchNorm waits for all processes, and one with an error comes to the roll call only.
        if not selected or self._options.memory == "low" or holds_custom(self._objectives):
            return None
        if self.only_norms and self._objectives.kind in LISTED:
            return None
        local = self._local_parts(selected)
        return local.names, local.formats

    @override
    def values(self, *, wanted: bool) -> Tensor | None:
        if self._is_alone and self._objectives is not None:
            return self._objectives.values()
        return super().values(wanted=wanted)

    @override
    def gramian(self, named: NamedParameters) -> Tensor:
        if self._is_alone:
            return self._tape(named).gramian()
        names, nothing = tuple([name for name, _ in named]), (None,) * len(named)
        formats: list[Any] = []
        if all(each is not None and each[0] in ((), names) for each in self._formats):
            formats = [each[1] or nothing for each in self._formats]
        parts = map(self._local_parts, self._at_a_time(named))
        G, held = gramian_of(parts, self.pool, self.layout, self.like(), formats)
        if (tape := self._tapes.get(named[0][0])) is not None:
            for pair in held:
                tape.hold(*pair)
        return G

    @override
    def squared_norms(self, named: NamedParameters) -> Tensor:
        if not (self._is_alone or self.layout.is_union):  # parts of a row on several processes
            return super().squared_norms(named)
        squares = self.like().new_zeros(0 if self._objectives is None else self._objectives.m)
        if self._objectives is not None and self._reaches(named):
            tape = self._tape(named)
            norms = tape.extract(SquaredNorms(), keeps=self._options.memory == "fast")
            squares = sum([part.to(squares) for part in norms.found.values()], squares)
            self._note_paths(tape)
            if self._options.memory == "low":
                self._tapes.pop(named[0][0], None)  # an ordinary pass gives the gradients
        if self._is_alone:
            return squares
        return self.pool.sum(self.layout.placed(squares, self.pool.rank), "gramian")

    @override
    def jacobian(self, named: NamedParameters) -> Tensor:
        like = self.like()
        J = like.new_zeros(0, sum(column_count(tensor) for _, tensor in named))
        if self._objectives is not None:
            J, slow = jacobian_with_reasons(self._objectives, named, scale=self._scale)
            self.slow |= slow
        self.paths |= {name: "jacobian" for name, _ in named}
        return J if self._is_alone else all_at_first(self.pool, self.layout, J.to(like))

    @override
    def features_gramian(self, features: str | Tensor | None) -> Tensor:
        """The Gramian at the features of all processes side by side."""
        if self._is_alone and self._objectives is not None:
            return features_gramian(self._objectives, self._scale, features, self.named)
        G = self.like().new_zeros(self.layout.m, self.layout.m)
        problem = ""
        if self._objectives is not None:
            try:
                block = features_gramian(self._objectives, self._scale, features, self.named)
                self.layout.add_block(G, block.to(G), self.pool.rank, self.pool.rank)
            except GraphError as error:  # all processes must know, or the others would wait
                problem = str(error)
        if problems := [each for each in self.pool.gather(problem) if each]:
            raise GraphError(problems[0])
        return self.pool.sum(G, "gramian")

    @override
    def plain_gradients(self, delivery: Delivery) -> Gradients:
        # The gradient of the sum of the tasks is what a loop over them adds up.
        is_sum = self._is_alone and self.layout.plain_weight == 1
        if is_sum and self._gramian_is_next and self.selected and not self.only_norms:
            tensors = [tensor for _, tensor in self.plain]
            found = self._tape(self.selected).gradients_beside(tensors)
            if found is not None:
                return _present(self.plain, found)
        return super().plain_gradients(delivery)

    @override
    def _own_gradients(self, named: NamedParameters, weights: Tensor) -> Gradients:
        tape = self._tapes.pop(named[0][0], None)  # and release it: the next one needs memory too
        if self._objectives is None or not self._reaches(named):
            return {}
        if tape is not None:
            self._note_paths(tape)
        if tape is None or self._is_ordinary(tape):
            keep = self._retain_graph or named is self.plain or bool(self._tapes)  # come first
            return ordinary_gradients(self._objectives, named, weights, self._scale, keep)
        return _present(named, tape.gradients(weights))

    @override
    def delivered(self, own: Gradients, complete: Gradients, delivery: Delivery) -> Gradients:
        if not self._is_alone or self._objectives is None:
            return super().delivered(own, complete, delivery)
        if self._frees:
            mark_as_freed(self._objectives)
        return own | complete

    @override
    def combined(self, weights: Tensor) -> Tensor | None:
        if self.plain or not self._is_alone or self._objectives is None:
            return None
        losses = self._objectives.losses
        with torch.enable_grad():
            if isinstance(losses, Tensor):
                vector = losses.reshape(-1)
            elif all(isinstance(loss, Tensor) for loss in losses):
                vector = torch.stack(losses)  # type: ignore[arg-type]  # they are tensors
            else:  # only their places in the graph are known
                return None
            return vector @ weights.to(vector)

    @override
    def finite_only(self, finite: Sequence[bool]) -> Rows:
        if self._is_alone and not self.skips and self._objectives is not None:
            if bad := self._objectives.nonfinite():
                raise self.losses_error(bad, self._objectives.m)
            raise self.gradients_error(self._names(finite))
        # Rows that are computed together spoil one another: AccumulatedRows compute each alone.
        rows = AccumulatedRows(
            self.named, select=self._which, nonfinite=self._nonfinite, pool=self.pool
        )
        if self._given is not None:
            rows.add(self._given, scale=self._scale)
        rows.agree(exactly=True, gramian_is_next=True)
        return rows

    @override
    def shown(self) -> Tensor:
        if not self._is_alone or self._objectives is None:
            return super().shown()
        total = self._objectives.total
        return self._objectives.values() if total is None else total.detach()

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

    def _tape(self, named: NamedParameters) -> Tape:
        """The tape of some parameters, stored until their gradients are computed."""
        assert self._objectives is not None
        tape = self._tapes.get(named[0][0])
        if tape is None:
            # All groups differentiate the same graph.
            keep = self._retain_graph or len(named) < len(self.selected) or self._is_clipped
            options = self._options if self._is_alone else replace(self._options, memory="fast")
            tape = Tape(
                self._objectives, named, scale=self._scale, retain_graph=keep, **vars(options)
            )
            if self._is_alone or self._options.memory == "fast":
                self._tapes[named[0][0]] = tape
        return tape

    def _note_paths(self, tape: Tape) -> None:
        self.paths |= tape.paths
        if not tape.is_replayed:  # one pass serves all parameters then
            self.slow |= slow_parameters(tape)

    @cached_property
    def _is_clipped(self) -> bool:
        """Whether hooks may change the gradients of single tasks in plain training."""
        if not (self._is_alone and self.as_plain) or self._objectives is None:
            return False
        is_vector = isinstance(self._objectives.losses, Tensor)  # its hooks are known to the tape
        return not is_vector and holds_hooks(self._objectives)

    def _is_ordinary(self, tape: Tape) -> bool:
        """Whether the gradients must be those of an ordinary backward pass."""
        return self.as_plain and (tape.is_hooked or self._is_clipped)

    def _at_a_time(self, named: NamedParameters) -> Iterator[NamedParameters]:
        """With ``memory="low"``, groups whose rows take at most twice the parameters' memory."""
        limit = 2 * sum(tensor.numel() for _, tensor in named)
        some: NamedParameters = []
        for name, tensor in named:
            size = self.layout.m * (tensor.numel() + sum(other.numel() for _, other in some))
            if some and size > limit and self._options.memory == "low":
                yield some
                some = []
            some.append((name, tensor))
        yield some

    def _local_parts(self, named: NamedParameters) -> LocalParts:
        parts: list[list[Contribution]] = [[] for _ in named]
        sizes = [column_count(tensor) for _, tensor in named]
        if self._objectives is not None and self._reaches(named):
            tape = self._tape(named)
            for contribution in tape.contributions():
                parts[contribution.placements[0].parameter].append(contribution)
            self._note_paths(tape)
        listed = self._objectives is None or self._objectives.kind in LISTED
        tasks = () if listed or self._objectives is None else self._objectives.names
        return LocalParts(tuple([name for name, _ in named]), sizes, parts, tasks)

    def _reaches(self, named: NamedParameters) -> bool:
        """Whether the losses of this process reach one of the parameters."""
        return self._is_alone or any(name in self._selection.here for name, _ in named)


def _present(named: NamedParameters, gradients: Sequence[Tensor | None]) -> Gradients:
    pairs = zip(named, gradients, strict=True)
    return {name: gradient for (name, _), gradient in pairs if gradient is not None}


def ordinary_gradients(
    objectives: Objectives,
    named: NamedParameters,
    weights: Tensor,
    scale: float | Tensor,
    retain_graph: bool,
) -> Gradients:
    """The gradients of the weighted losses, by an ordinary backward pass."""
    gradients = torch.autograd.grad(
        objectives.outputs,  # type: ignore[arg-type]  # tensors and edges may be mixed
        [tensor for _, tensor in named],
        objectives.cotangents(weights * scale),
        retain_graph=retain_graph,
        allow_unused=True,
    )
    is_one = isinstance(scale, float) and scale == 1
    return _present(named, [g if is_one or g is None else g / scale for g in gradients])
