"""The rows of instances by one pass, in which layers are gathered one after the other."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lightning_jd.core.processes._columns import blocks_of, bucket_width
from lightning_jd.core.processes._gramian import LocalParts, gramian_of
from lightning_jd.core.processes._layout import LISTED, Layout, kind_of
from lightning_jd.core.processes._pool import Pool
from lightning_jd.core.rows._shards import cuts_of, is_cut_in_front, whole_of
from lightning_jd.engines import NamedParameters, Objectives, Tape, leaves_reached
from lightning_jd.engines.tape import (
    Certificates,
    Contribution,
    Rounding,
    one_pass_of,
    random_vector,
)
from lightning_jd.errors import GraphError

#: How many entries of a parameter go to each process, from the first entry on.
Cuts = Sequence[int]


class Gathered:
    """Activations and their gradients, from which rows are formed layer by layer.

    Args:
        tape: The losses of this process, and the whole parameters; its pass is run here.
        named: The sharded parameters, cut along their first axis.
        pool: The processes.
        layout: The rows of all processes.
        like: A tensor of the type of the rows.
    """

    def __init__(
        self, tape: Tape, named: NamedParameters, pool: Pool, layout: Layout, like: Tensor
    ) -> None:
        self._pool, self.layout, self.like = pool, layout, like
        self._named = named
        self._parts = tape.contributions()
        #: How each parameter was dealt with.
        self.paths = tape.paths
        self._cuts = [cuts_of(tensor) for _, tensor in named]

    def rows(self) -> Tensor:
        """This process's columns of all rows, shape (m, columns)."""
        counts = self.layout.counts
        return reshard_rows(self._parts, self._cuts, counts, self._pool, self.like)

    def gramian(self, names: Collection[str]) -> Tensor:
        """The Gramian of all rows over some parameters; no row is formed where factors do."""
        return gramian_of([self._local(names)], self._pool, self.layout, self.like)[0]

    def squared_norms(self, names: Collection[str]) -> Tensor:
        """The squared norms of all rows over some parameters."""
        own = self.like.new_zeros(self.layout.counts[self._pool.rank])
        for part in [part for parts in self._local(names).parts for part in parts]:
            for single in part.split():
                own += single.squared_norms().to(own)
        return self._pool.sum(self.layout.placed(own, self._pool.rank), "gramian")

    def _local(self, names: Collection[str]) -> LocalParts:
        chosen = {k for k, (name, _) in enumerate(self._named) if name in names}
        parts: list[list[Contribution]] = [[] for _ in self._named]
        for part in self._parts:
            places = {placement.parameter for placement in part.placements}
            for some in [part] if places <= chosen else part.split():
                if some.placements[0].parameter in chosen:
                    parts[some.placements[0].parameter].append(some)
        return LocalParts(tuple(sorted(names)), [sum(each) for each in self._cuts], parts)

    def combined(self, weights: Tensor, names: Collection[str]) -> Tensor:
        """This process's columns of ``weights @ J``, those of some parameters, side by side."""
        own = self.layout.own_weights(weights.to(self.like), self._pool.rank)
        cuts = {k: self._cuts[k] for k, (name, _) in enumerate(self._named) if name in names}
        return reshard_gradient(self._parts, own, cuts, self._pool, self.like)

    @torch.no_grad()  # saved activations may require a gradient
    def agrees(self, v: Tensor, expected: Tensor, dtype: torch.dtype, *, by_rows: bool) -> bool:
        """Whether a combination of the rows, and the Gramian, match an ordinary pass.

        Args:
            v: The weights of the combination.
            expected: This process's columns of ``v @ J``.
            dtype: The least precise type that takes part.
            by_rows: Whether :meth:`rows` will be used, and not :meth:`gramian` and
                :meth:`combined`.
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
        """The sum of the squared norms of this process's weighted rows, by parameter."""
        own = self.layout.own_weights(v, self._pool.rank).square()
        found = self.like.new_zeros(len(self._named))
        for part in self._parts:
            squares = part.gramian().diagonal().clamp(min=0).to(self.like)
            for placement in part.placements:
                found[placement.parameter] += own @ squares
        return found


@dataclass(frozen=True)
class OnePassCheck:
    """Whether one pass is enough for the rows of instances, before and after that pass.

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
    def of(
        cls, objectives: Objectives, named: NamedParameters, scale: float | Tensor
    ) -> OnePassCheck:
        """Inspect the graph of the losses and the sharded parameters; nothing is run."""
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

    def passes(
        self, gathered: Gathered, combined: Callable[[Tensor], Tensor], *, by_rows: bool
    ) -> bool:
        """Whether an ordinary pass agrees with one pass for all rows; otherwise a warning.

        A random combination of the rows is compared, and its length with the Gramian.

        Args:
            gathered: The result of the one pass.
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
        """Whether a certificate is due, with so many micro-batches between two."""
        return self.certificates is not None and self.certificates.is_due("sharded", every)

    def count(self, *, certified: bool) -> None:
        """Count one more micro-batch of one pass."""
        assert self.certificates is not None
        steps = self.certificates.steps
        steps["sharded"] = 1 if certified else 1 + steps["sharded"]


def reshard_rows(
    parts: Sequence[Contribution],
    cuts: Sequence[Cuts],
    counts: Sequence[int],
    pool: Pool,
    like: Tensor,
) -> Tensor:
    """This process's columns of the rows of all processes, one below the other."""
    singles: list[list[Contribution]] = [[] for _ in cuts]
    for single in [single for part in parts for single in part.split()]:
        singles[single.placements[0].parameter].append(single)

    def rows() -> Iterator[Tensor]:
        for those, each in zip(singles, cuts, strict=True):
            size = sum(each)
            yield torch.cat([*blocks_of(those, counts[pool.rank], size, size, like)], dim=1)
            those.clear()  # the next ones need the memory

    return _reshard(rows(), cuts, counts, pool, like, "rows")


def reshard_gradient(
    parts: Sequence[Contribution],
    weights: Tensor,
    cuts: Mapping[int, Cuts],
    pool: Pool,
    like: Tensor,
) -> Tensor:
    """This process's columns of a combination of all rows over some parameters, by position."""

    def gradients() -> Iterator[Tensor]:
        found: dict[int, Tensor] = {}
        waiting = list(parts)
        for k, each in cuts.items():
            for part in [p for p in waiting if k in {at.parameter for at in p.placements}]:
                waiting = [p for p in waiting if p is not part]
                for at, gradient in zip(part.placements, part.gradients(weights), strict=True):
                    found[at.parameter] = found.get(at.parameter, 0) + gradient.to(like)
            yield found.pop(k, like.new_zeros(sum(each))).view(1, -1)

    ones = [1] * pool.size
    return _reshard(gradients(), [*cuts.values()], ones, pool, like, "gradient").sum(dim=0)


def _reshard(
    blocks: Iterable[Tensor],
    cuts: Sequence[Cuts],
    counts: Sequence[int],
    pool: Pool,
    like: Tensor,
    purpose: str,
) -> Tensor:
    """Exchange whole parameters, as many at a time as fill a bucket."""
    width = bucket_width(counts, like)
    found: list[Tensor] = []
    waiting: list[tuple[Tensor, ...]] = []  # for each parameter a shard per process
    count = 0
    for k, (block, each) in enumerate(zip(blocks, cuts, strict=True)):
        waiting.append(block.split(list(each), dim=1))
        count += block.shape[1]
        if count < width and k + 1 < len(cuts):
            continue
        shards = [torch.cat(some, dim=1) for some in zip(*waiting, strict=True)]
        widths = [shard.shape[1] for shard in shards]
        found.append(pool.exchange(torch.cat(shards, dim=1), counts, widths, purpose))
        waiting, count = [], 0
    return torch.cat([like.new_empty(sum(counts), 0), *found], dim=1)
