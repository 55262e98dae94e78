"""The rows of instances by one pass, in which layers are gathered one after the other."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lightning_jd.core.processes._columns import blocks_of, bucket_width
from lightning_jd.core.processes._gramian import LocalParts, gramian_of
from lightning_jd.core.processes._layout import LISTED, Layout, kind_of
from lightning_jd.core.processes._pool import Pool
from lightning_jd.core.rows._shards import cuts_of, is_cut_in_front, whole_of
from lightning_jd.engines import NamedParameters, Objectives, Tape, leaves_reached
from lightning_jd.engines.tape import Contribution, foresee
from lightning_jd.errors import GraphError

#: How many entries of a parameter go to each process, from the first entry on.
Cuts = Sequence[int]

#: Micro-batches between two certificates of the same kind of graph.
CHECK_EVERY = 1000
#: Micro-batches since the last certificate of a kind of graph; negative where one has failed.
_standing: dict[Hashable, int] = {}


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
        chosen = {k for k, (name, _) in enumerate(self._named) if name in names}
        parts: list[list[Contribution]] = [[] for _ in self._named]
        for part in self._parts:
            places = {placement.parameter for placement in part.placements}
            for some in [part] if places <= chosen else part.split():
                if some.placements[0].parameter in chosen:
                    parts[some.placements[0].parameter].append(some)
        local = LocalParts(tuple(sorted(names)), [sum(each) for each in self._cuts], parts)
        return gramian_of([local], self._pool, self.layout, self.like)[0]

    def combined(self, weights: Tensor, names: Collection[str]) -> Tensor:
        """This process's columns of ``weights @ J``, those of some parameters, side by side."""
        own = self.layout.own_weights(weights.to(self.like), self._pool.rank)
        cuts = {k: self._cuts[k] for k, (name, _) in enumerate(self._named) if name in names}
        return reshard_gradient(self._parts, own, cuts, self._pool, self.like)

    def agrees(self, v: Tensor, expected: Tensor, tolerance: float, *, by_rows: bool) -> bool:
        """Whether a positive combination of the rows, and the Gramian, match an ordinary pass.

        Args:
            v: The weights of the combination.
            expected: This process's columns of ``v @ J``.
            tolerance: The permitted error, as a share of the norms of the rows.
            by_rows: Whether :meth:`rows` will be used, and not :meth:`gramian` and
                :meth:`combined`.
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
        """The sum of the norms of the weighted rows of all processes, by parameter."""
        own = self.layout.own_weights(v, self._pool.rank)
        found = self.like.new_zeros(len(self._named))
        for part in self._parts:
            norms = part.gramian().diagonal().clamp(min=0).sqrt().to(self.like)
            for placement in part.placements:
                found[placement.parameter] += own @ norms
        return self._pool.sum(found, "agreement")


@dataclass(frozen=True)
class OnePassCheck:
    """Whether one pass is enough for the rows of instances, before and after that pass.

    Attributes:
        obstacle: Why one pass is not enough, or nothing.
        kind: The same for graphs that differ in sizes only.
        wholes: The whole parameters, as the graph knows them.
        precision: That of the least precise type of parameters and losses.
    """

    obstacle: str
    kind: Hashable = None
    wholes: NamedParameters = field(default_factory=list)
    precision: float = 0.0

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
            obstacle, kind = foresee(objectives, known, scale)
        except GraphError as error:
            return cls(str(error))
        if _standing.get(kind, 0) < 0:
            return cls("a certificate has failed")
        types = {objectives.dtype, *(whole.dtype for _, whole in known)}
        return cls(obstacle, kind, known, max(torch.finfo(dtype).eps for dtype in types))

    def passes(
        self, gathered: Gathered, combined: Callable[[Tensor], Tensor], *, by_rows: bool
    ) -> bool:
        """Whether an ordinary pass agrees with one pass for all rows; otherwise a warning.

        A random combination of the rows is compared, and its length with the Gramian. The rounding
        error is unknown, so half of the digits must agree.

        Args:
            gathered: The result of the one pass.
            combined: This process's columns of a combination of the rows, by an ordinary pass.
            by_rows: See :meth:`Gathered.agrees`.
        """
        m, like = gathered.layout.m, gathered.like
        v = (1 + torch.rand(m, generator=torch.Generator().manual_seed(m))).to(like)
        if gathered.agrees(v, combined(v), self.precision**0.5, by_rows=by_rows):
            return True
        _standing[self.kind] = -(10**9)
        warnings.warn(
            "Rows of instances that were computed together differ from those of single passes. "
            "Parameters in pieces take one backward pass per instance from here on.",
            UserWarning,
            stacklevel=2,
        )
        return False

    @property
    def is_due(self) -> bool:
        """Whether a certificate is due."""
        return _standing.get(self.kind, 0) % CHECK_EVERY == 0

    def count(self, *, certified: bool) -> None:
        """Count one more micro-batch of one pass."""
        _standing[self.kind] = 1 if certified else 1 + _standing[self.kind]


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
