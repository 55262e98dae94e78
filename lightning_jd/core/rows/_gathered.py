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
from lightning_jd.engines.tape import (
    Certificates,
    Contribution,
    Rounding,
    one_pass_of,
    random_vector,
)
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

    def agrees(self, v: Tensor, expected: Tensor, dtype: torch.dtype, *, by_rows: bool) -> bool:
        """Whether a combination of the rows, and the Gramian, are those of an ordinary pass.

        Args:
            v: The weights of the combination.
            expected: This process's columns of ``v @ J``.
            dtype: The least precise type that takes part.
            by_rows: Whether :meth:`rows` will be called, and not :meth:`gramian` and
                :meth:`combined`.

        Returns:
            The same on all processes.
        """
        everything = {name for name, _ in self._named}
        found = v @ self.rows() if by_rows else self.combined(v, everything)
        sizes = [each[self._pool.rank] for each in self._cuts]
        columns = torch.stack([found - expected, expected]).square().split(sizes, dim=1)
        squares = torch.stack([part.sum(dim=1) for part in columns], dim=1)
        known = torch.cat([squares, self._squares(v)[None]])
        off, lengths, norms = self._pool.sum(known, "agreement").sqrt()
        total = float(norms.norm())
        rounding = Rounding(dtype, v, total)
        faults = map(rounding.fault, norms.tolist(), lengths.tolist(), off.tolist())
        if any(fault is not None for fault in faults):
            return False
        if by_rows:
            return True
        squared = float(v @ self.gramian(everything) @ v)
        return rounding.fault(total, float(lengths.norm()), 0.0, squared) is None

    def _squares(self, v: Tensor) -> Tensor:
        """By parameter, what the squared norms of this process's weighted rows add up to."""
        own = self.layout.own_weights(v, self._pool.rank).square()
        found = self.like.new_zeros(len(self._named))
        for part in self._parts:
            squares = part.gramian().diagonal().clamp(min=0).to(self.like)
            for placement in part.placements:
                found[placement.parameter] += own @ squares
        return found


@dataclass(frozen=True)
class Prospect:
    """Whether one pass is enough for the rows of instances: one_pass_ofn, and certified.

    Attributes:
        obstacle: Why one pass is not enough, or nothing.
        certificates: Those of graphs that differ in sizes only.
        wholes: The whole parameters, as the graph knows them.
        dtype: The least precise type of parameters and losses.
    """

    obstacle: str
    certificates: Certificates | None = None
    wholes: NamedParameters = field(default_factory=list)
    dtype: torch.dtype = torch.float64

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
            obstacle, certificates = one_pass_of(objectives, known, scale)
        except GraphError as error:
            return cls(str(error))
        types = {objectives.dtype, *(whole.dtype for _, whole in known)}
        least = max(types, key=lambda dtype: torch.finfo(dtype).eps)
        return cls(obstacle, certificates, known, least)

    def holds(
        self, gathered: Gathered, combined: Callable[[Tensor], Tensor], *, by_rows: bool
    ) -> bool:
        """Whether an ordinary pass agrees with what was noted in one pass; otherwise a warning.

        Rows are compared in a random combination, and their Gramian by the length of that.

        Args:
            gathered: What was noted.
            combined: This process's columns of a combination of the rows, by an ordinary pass.
            by_rows: See :meth:`Gathered.agrees`.
        """
        m = gathered.layout.m  # the same vector on all processes
        v = random_vector(torch.eye(m).to(gathered.like), 1.0, torch.Generator().manual_seed(m))
        if gathered.agrees(v, combined(v), self.dtype, by_rows=by_rows):
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
