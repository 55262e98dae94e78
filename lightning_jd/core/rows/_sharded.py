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

from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators import Method
from lightning_jd.core.processes._delivery import Delivery, Gradients
from lightning_jd.core.processes._layout import LISTED, Description, Layout, kind_of, listed_names
from lightning_jd.core.processes._pool import Pool
from lightning_jd.core.rows._accumulated import Store
from lightning_jd.core.rows._base import Rows, columns_of, per_parameter
from lightning_jd.core.rows._fsdp_tape import Gathered, OnePassCheck
from lightning_jd.core.rows._shards import (
    check_pieces,
    differentiated,
    in_pieces,
    local,
    unsupported_by_pieces,
)
from lightning_jd.engines import (
    NamedParameters,
    Objectives,
    Select,
    Tape,
    TapeOptions,
    column_count,
    select,
)
from lightning_jd.engines.tape.contributions import products
from lightning_jd.errors import ArgumentError


class ShardedRows(Rows):
    """Each process holds some columns of all rows, those of its shards of the parameters.

    No objective can be left out: a process that does without one leaves the others waiting.
    Arguments are those of :func:`lightning_jd.core.rows.collect`.
    """

    def __init__(
        self,
        named: NamedParameters,
        *,
        select: Select = "all",
        keeps: bool = True,
        check_every: int = TapeOptions.check_every,
    ) -> None:
        pool = Pool(local(named[0][1]).device)
        super().__init__(named, pool=pool, select=select)
        self._can_skip = False
        check_pieces(named, self.pool.size)
        self._keeps, self._check_every = keeps, check_every
        self._gathered: Gathered | None = None
        self._pieces: NamedParameters = [(name, local(tensor)) for name, tensor in named]
        self._kinds: set[tuple[str, int]] = set()  # and the number of tasks per instance
        columns = sum(column_count(piece) for _, piece in self._pieces)
        self._store = Store(self.like().new_zeros(0, columns))  # what this process has of all rows
        self._ways: dict[str, str] = {}
        self._counts: list[list[int]] = []  # rows of each process, by micro-batch
        self._J = torch.empty(0)

    @override
    def add(self, objectives: Objectives, *, scale: float | Tensor = 1.0) -> None:
        """Differentiate the losses of one micro-batch; their graph is kept."""
        self._micro_batches += 1
        one_pass = OnePassCheck.of(objectives, self.named, scale)
        layout, obstacle, is_due = self._layout_of(objectives, one_pass)
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

        def combined(weights: Tensor) -> Tensor:
            """This process's columns of ``weights @ J``, by one pass of all processes."""
            # It ends with a mean. Hooks see the gradients of the losses as they are in training.
            after = self.pool.size if layout.is_union else 1
            weights = weights.to(objectives.dtype) * (self.pool.size / after)
            own = layout.own_weights(weights, self.pool.rank)
            mean = differentiated(objectives, self.named, own * scale).to(self.like())
            return mean * after / scale

        J = None
        if not obstacle:
            tape = Tape(objectives, one_pass.wholes, scale=scale, check="off")
            gathered = Gathered(tape, self.named, self.pool, layout, self.like())
            self._ways = gathered.paths
            if not is_due or one_pass.passes(gathered, combined, by_rows=self._keeps):
                self._gathered = None if self._keeps else gathered
                J = gathered.rows() if self._keeps else self.like().new_empty(layout.m, 0)
        if J is None:
            J = torch.stack(
                [combined(unit) for unit in torch.eye(layout.m, device=objectives.device)]
            )
            self._ways = dict.fromkeys((name for name, _ in self.named), "pieces")
        placed = layout.placed(objectives.values(), self.pool.rank)
        self._store.add(layout.kind, layout.names, J, placed)
        self._counts.append(layout.counts)

    @override
    def unsupported(self, method: Method) -> str | None:
        return unsupported_by_pieces(method)

    @override
    def agree(self, *, exactly: bool, gramian_is_next: bool) -> None:
        ((kind, columns),) = self._kinds
        if kind in LISTED and len(self._counts) > 1:  # by process first, as with whole parameters
            ranks = [
                r for each in self._counts for r, count in enumerate(each) for _ in range(count)
            ]
            self._store.keep(sorted(range(len(ranks)), key=ranks.__getitem__))
        self._J = self._store.rows(mean=True)
        k = columns if kind == "instances_tasks" else 0
        names = tuple(self._store.sums) or listed_names(len(self._J), k)
        self.layout = Layout(kind, names, columns, ())
        self.paths = {name: self._ways[name] for name, _ in self.selected}

    @override
    def values(self, *, wanted: bool) -> Tensor | None:
        """The mean over micro-batches, over all processes."""
        if not wanted:
            return None
        return self.pool.sum(torch.cat(self._own_values()).to(self._J), "losses")

    @override
    def gramian(self, named: NamedParameters) -> Tensor:
        if self._gathered is not None:
            return self._gathered.gramian({name for name, _ in named})
        part = columns_of(self._J, self._pieces, named)
        return self.pool.sum(products(part), "gramian")

    @override
    def squared_norms(self, named: NamedParameters) -> Tensor:
        if self._gathered is not None:
            return self._gathered.squared_norms({name for name, _ in named})
        part = columns_of(self._J, self._pieces, named)
        return self.pool.sum(part.square().sum(dim=1), "gramian")

    @override
    def combine(self, named: NamedParameters, weights: Tensor, delivery: Delivery) -> Gradients:
        return self._own_gradients(named, weights)

    @override
    def delivered(self, own: Gradients, complete: Gradients, delivery: Delivery) -> Gradients:
        """All of them, in pieces. They are final: nothing is reduced, whatever is asked for."""
        return {name: in_pieces(own[name], tensor) for name, tensor in self.named}

    @override
    def finite_only(self, finite: Sequence[bool]) -> Rows:
        raise self.gradients_error(self._names(finite))

    @override
    def _own_values(self) -> list[Tensor]:
        return self._store.losses(mean=True)

    @override
    def _own_gradients(self, named: NamedParameters, weights: Tensor) -> Gradients:
        if self._gathered is not None:
            found = self._gathered.combined(weights, {name for name, _ in named})
            return per_parameter(found, named)
        part = columns_of(self._J, self._pieces, named)
        return per_parameter(weights.to(part) @ part, named)

    def _layout_of(
        self, objectives: Objectives, one_pass: OnePassCheck
    ) -> tuple[Layout, str, bool]:
        """Gather the descriptions of this micro-batch on all processes.

        Returns:
            The rows of all; the obstacle to one pass on some process; whether a certificate is due.
        """
        kinds, columns = kind_of(objectives)
        listed = kinds[0] in LISTED
        tasks = () if listed else tuple((name, 1) for name in objectives.names)
        description = Description(kinds, columns, tasks, objectives.m if listed else 0)
        own = (objectives.nonfinite(), objectives.m, description)
        is_due = one_pass.is_due(self._check_every)
        bad, counts, descriptions, obstacles, due = zip(
            *self.pool.gather((*own, one_pass.obstacle, is_due)), strict=True
        )
        obstacle = next(filter(None, obstacles), "")
        if not obstacle:
            one_pass.count(certified=any(due))
        if names := [name for some in bad for name in some]:
            raise self.losses_error(names, sum(counts))
        layout = Layout.of(descriptions)
        if 0 in layout.counts or (layout.kind == "tasks" and min(layout.counts) < layout.m):
            has = [[name for name, _ in each.tasks] or each.listed for each in descriptions]
            raise ArgumentError(
                "With parameters in pieces, all processes must have losses, and of the same tasks, "
                f"got {has}. A process that skips a part of the model leaves the others waiting: "
                "return zero times the outputs instead, or use strategy='ddp'."
            )
        self._kinds.add((layout.kind, layout.columns))
        return layout, obstacle, any(due)
