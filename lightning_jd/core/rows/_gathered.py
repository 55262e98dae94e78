"""The rows of instances by one pass, in which layers are gathered one after the other."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from lightning_jd.core.processes._gramian import Held, gramian_of
from lightning_jd.core.processes._layout import Layout
from lightning_jd.core.processes._pool import Pool
from lightning_jd.core.rows._cut_up import gradient_cut_up, rows_cut_up
from lightning_jd.core.rows._pieces import cuts_of
from lightning_jd.engines import NamedParameters, Tape
from lightning_jd.engines.tape import Contribution


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
        self._pool, self._layout, self._like = pool, layout, like
        self._agreed = pool.agreed
        self._named, self._rows = named, tape.objectives.names
        self._parts = tape.contributions()
        #: How each parameter was dealt with.
        self.paths = tape.paths
        self._cuts = [cuts_of(tensor) for _, tensor in named]

    def rows(self) -> Tensor:
        """This process's columns of all rows, shape (m, columns)."""
        counts = self._layout.counts
        return rows_cut_up(self._parts, self._cuts, counts, self._pool, self._like)

    def gramian(self, names: Collection[str]) -> Tensor:
        """The Gramian of all rows over some parameters; no row is formed where factors do."""
        chosen = {k for k, (name, _) in enumerate(self._named) if name in names}
        parts: list[list[Contribution]] = [[] for _ in self._named]
        for part in self._parts:
            places = {placement.parameter for placement in part.placements}
            for some in [part] if places <= chosen else part.split():
                if some.placements[0].parameter in chosen:
                    parts[some.placements[0].parameter].append(some)
        held = Held(tuple(sorted(names)), [sum(each) for each in self._cuts], parts)
        return gramian_of(
            lambda: [held], self._rows, self._pool, self._layout, self._agreed, self._like
        )[0]

    def combined(self, weights: Tensor, names: Collection[str]) -> Tensor:
        """This process's columns of ``weights @ J``, those of some parameters, side by side."""
        own = self._layout.own_weights(weights.to(self._like), self._pool.rank)
        cuts = {k: self._cuts[k] for k, (name, _) in enumerate(self._named) if name in names}
        return gradient_cut_up(self._parts, own, cuts, self._pool, self._like)

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
        own = self._layout.own_weights(v, self._pool.rank)
        found = self._like.new_zeros(len(self._named))
        for part in self._parts:
            norms = part.gramian().diagonal().clamp(min=0).sqrt().to(self._like)
            for placement in part.placements:
                found[placement.parameter] += own @ norms
        return self._pool.sum(found, "agreement")
