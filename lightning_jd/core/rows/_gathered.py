"""The rows of instances by one pass, in which layers are gathered one after the other."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lightning_jd.core.processes._gramian import LocalParts, gramian_of
from lightning_jd.core.processes._layout import LISTED, Layout, kind_of
from lightning_jd.core.processes._pool import Pool
from lightning_jd.core.rows._cut_up import gradient_cut_up, rows_cut_up
from lightning_jd.core.rows._pieces import cuts_of, is_cut_in_front, whole_of
from lightning_jd.engines import NamedParameters, Objectives, Tape, leaves_reached
from lightning_jd.engines.tape import Certificates, Contribution, foresee
from lightning_jd.errors import GraphError


class Gathered:
    """Activations and their gradients, from which rows can be had, layer by layer.

    Everything here is called by all processes in the same order.

    Args:
        tape: The losses of this process, and the whole parameters; its pass is run here.
        named: The parameters in pieces, cut along their first axis.
        pool: The processes.
        layout: The rows of all processes, which stand for themselves.
        like: A tensor of the type of the rows.
    """

    def __init__(
        self, tape: Tape, named: NamedParameters, pool: Pool, layout: Layout, like: Tensor
    ) -> None:
        self._pool, self.layout, self.like = pool, layout, like
        self._agreed = pool.agreed
        self._named, self._rows = named, tape.objectives.names
        self._parts = tape.contributions()
        #: How each parameter was dealt with.
        self.paths = tape.paths
        self._cuts = [cuts_of(tensor) for _, tensor in named]

    def rows(self) -> Tensor:
        """This process's columns of all rows, shape (m, columns)."""
        counts = self.layout.counts
        return rows_cut_up(self._parts, self._cuts, counts, self._pool, self.like)

    def gramian(self, names: Collection[str]) -> Tensor:
        """The Gramian of all rows over some parameters; no row is formed where factors do."""
        chosen = {k for k, (name, _) in enumerate(self._named) if name in names}
        parts: list[list[Contribution]] = [[] for _ in self._named]
        for part in self._parts:
            places = {placement.parameter for placement in part.placements}
            for some in [part] if places <= chosen else part.split():
                if some.placements[0].parameter in chosen:
                    parts[some.placements[0].parameter].append(some)
        local = LocalParts(tuple(sorted(names)), [sum(each) for each in self._cuts], parts)
        return gramian_of(
            lambda: [local], self._rows, self._pool, self.layout, self._agreed, self.like
        )[0]

    def combined(self, weights: Tensor, names: Collection[str]) -> Tensor:
        """This process's columns of ``weights @ J``, those of some parameters, side by side."""
        own = self.layout.own_weights(weights.to(self.like), self._pool.rank)
        cuts = {k: self._cuts[k] for k, (name, _) in enumerate(self._named) if name in names}
        return gradient_cut_up(self._parts, own, cuts, self._pool, self.like)

    def agrees(self, v: Tensor, expected: Tensor, tolerance: float, *, by_rows: bool) -> bool:
        """Whether a combination of the rows, and the Gramian, are what an ordinary pass says.

        Args:
            v: The weights of the combination, positive.
            expected: This process's columns of ``v @ J``.
            tolerance: What may be lost, as a share of the norms of the rows.
            by_rows: Whether :meth:`rows` will be asked for, and not :meth:`gramian` and
                :meth:`combined`.

        Returns:
            The same on all processes.
        """
        everything = {name for name, _ in self._named}
        found = v @ self.rows() if by_rows else self.combined(v, everything)
        sizes = [each[self._pool.rank] for each in self._cuts]
        squares = [part.square().sum() for part in (found - expected).split(sizes)]
        sums = self._pool.sum(torch.stack([*squares, expected.square().sum()]), "agreement")
        *errors, length = sums.sqrt()
        norms = self._norms(v)
        slack = 1e-3 * norms.sum()  # the gradient of a parameter may be zero by luck
        agrees = bool((torch.stack(errors) <= tolerance * (norms + slack)).all())
        if by_rows:
            return agrees
        quadratic = (v @ self.gramian(everything) @ v).clamp(min=0).sqrt()
        return agrees and bool((quadratic - length).abs() <= tolerance * norms.sum())

    def _norms(self, v: Tensor) -> Tensor:
        """By parameter, what the norms of weighted rows add up to, on all processes."""
        own = self.layout.own_weights(v, self._pool.rank)
        found = self.like.new_zeros(len(self._named))
        for part in self._parts:
            norms = part.gramian().diagonal().clamp(min=0).sqrt().to(self.like)
            for placement in part.placements:
                found[placement.parameter] += own @ norms
        return self._pool.sum(found, "agreement")


@dataclass(frozen=True)
class Prospect:
    """Whether one pass is enough for the rows of instances: foreseen, and certified.

    Attributes:
        obstacle: Why one pass is not enough, or nothing.
        certificates: Those of graphs that differ in sizes only.
        wholes: The whole parameters, as the graph knows them.
        precision: That of the least precise type of parameters and losses.
    """

    obstacle: str
    certificates: Certificates | None = None
    wholes: NamedParameters = field(default_factory=list)
    precision: float = 0.0

    @classmethod
    def of(cls, objectives: Objectives, named: NamedParameters, scale: float | Tensor) -> Prospect:
        """Look at the losses, and at parameters in pieces; nothing is run."""
        if kind_of(objectives)[0][0] not in LISTED:
            return cls("tasks take a pass each")
        wholes = [(name, whole_of(tensor)) for name, tensor in named]
        known = [(name, whole) for name, whole in wholes if whole is not None]
        if len(known) < len(wholes) or not all(is_cut_in_front(tensor) for _, tensor in named):
            return cls("parameters are cut in another way than along their first axis")
        try:
            if leaves_reached(objectives) - {id(whole) for _, whole in known}:
                return cls("the losses depend on a tensor that is no parameter")
            obstacle, certificates = foresee(objectives, known, scale)
        except GraphError as error:
            return cls(str(error))
        types = {objectives.dtype, *(whole.dtype for _, whole in known)}
        return cls(obstacle, certificates, known, max(torch.finfo(dtype).eps for dtype in types))

    def holds(
        self, gathered: Gathered, combined: Callable[[Tensor], Tensor], *, by_rows: bool
    ) -> bool:
        """Whether an ordinary pass agrees with what was noted in one pass; otherwise a warning.

        Rows are compared in a random combination, and their Gramian by the length of that. What is
        lost by rounding is unknown, so half of the digits must agree.

        Args:
            gathered: What was noted.
            combined: This process's columns of a combination of the rows, by an ordinary pass.
            by_rows: See :meth:`Gathered.agrees`.
        """
        m, like = gathered.layout.m, gathered.like
        v = (1 + torch.rand(m, generator=torch.Generator().manual_seed(m))).to(like)
        if gathered.agrees(v, combined(v), self.precision**0.5, by_rows=by_rows):
            return True
        assert self.certificates is not None
        self.certificates.row_by_row = frozenset(range(len(self.wholes)))
        warnings.warn(
            "Rows of instances that were computed together differ from those of single passes. "
            "Parameters in pieces take one backward pass per instance from here on.",
            UserWarning,
            stacklevel=2,
        )
        return False

    def is_due(self, every: int) -> bool:
        """Whether a certificate is, with so many micro-batches between two."""
        return self.certificates is not None and self.certificates.is_due("sharded", every)

    def count(self, *, certified: bool) -> None:
        """One more micro-batch goes together."""
        assert self.certificates is not None
        steps = self.certificates.steps
        steps["sharded"] = 1 if certified else 1 + steps["sharded"]
