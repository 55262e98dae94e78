"""Exact block principal pivoting for many complementarity programs that share one matrix.

A row asks for ``z >= 0, w = Cz + q >= 0, zᵀw = 0``. Given the set P where z is positive, ``z_P``
solves ``C_PP z_P = -q_P``; entries with the wrong sign change sides, until none is left.
All rows advance together; systems of similar size are factorised in one batch.

References:
    Júdice and Pires, *A block principal pivoting algorithm for large-scale strictly monotone linear
    complementarity problems*, 1994; Kim and Park, *Fast nonnegative matrix factorization*, 2011.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

WRONG_SIGN = 1e-13  # relative to the largest entry of z: below this, a negative number is rounding
PATIENCE = 3  # full exchanges without progress before single ones, which cannot cycle
BATCH = 1 << 18  # numbers in one batch of systems: more than this leaves the cache of a CPU
BATCH_ON_ACCELERATOR = 1 << 26


class PrincipalSystems:
    """Solves ``C_PP z_P = -q_P``, with ``z = 0`` outside P, for one set P per row of ``Q`` (k, m).

    Args:
        C: Symmetric, shape (m, m).
        Q: Shape (k, m).
    """

    def __init__(self, C: Tensor, Q: Tensor) -> None:
        # One more row and column of zeros: the index m fills up systems that are short.
        self.matrix, self.sides = pad(C, (0, 1, 0, 1)), pad(Q, (0, 1))

    def solve(self, rows: Tensor, positive: Tensor) -> Tensor:
        """``z`` (len(rows), m) for the sets ``positive`` of these rows of ``Q``."""
        m = len(self.matrix) - 1
        sizes, ranking = positive.sum(dim=1).sort()
        counts = sizes.tolist()  # host sync
        index = torch.where(positive, torch.arange(m, device=rows.device), m).sort(dim=1).values
        sides = self.sides[rows]
        Z = torch.zeros_like(sides)
        stop = 0
        while stop < len(counts):
            start, stop = stop, _end_of_batch(counts, stop, rows.device)
            batch = ranking[start:stop, None]
            P = index[batch[:, 0], : counts[stop - 1]]
            A = torch.take(self.matrix, (P * (m + 1))[:, :, None] + P[:, None, :])
            A.diagonal(dim1=1, dim2=2).add_(P.eq(m))
            solution, _ = torch.linalg.solve_ex(A, sides[batch, P].unsqueeze(-1))
            Z[batch, P] = solution.squeeze(-1).neg_()
        return Z[:, :m]


def _end_of_batch(sizes: list[int], start: int, device: torch.device) -> int:
    """Where a batch of similar sizes ends: little padding, and not too many numbers."""
    limit = BATCH if device.type == "cpu" else BATCH_ON_ACCELERATOR
    largest = 1.25 * sizes[start] + 4
    stop = start + 1
    while (
        stop < len(sizes)
        and sizes[stop] <= largest
        and (stop + 1 - start) * sizes[stop] ** 2 <= limit
    ):
        stop += 1
    return stop


def pivot(C: Tensor, Q: Tensor, positive: Tensor, *, rounds: int) -> tuple[Tensor, Tensor]:
    """``Z`` (k, m) after at most ``rounds`` exchanges from the sets ``positive``, and what is left.

    The second tensor holds the indices of the rows that still had a wrong sign. They keep their
    last iterate, clamped at zero.
    """
    systems = PrincipalSystems(C, Q)
    k, m = Q.shape
    Z = torch.zeros_like(Q)
    rows = torch.arange(k, device=C.device)
    fewest = torch.full((k,), m + 1, device=C.device)
    patience = torch.full((k,), PATIENCE, device=C.device)
    for _ in range(rounds):
        z = systems.solve(rows, positive)
        Z[rows] = z
        w = torch.addmm(Q[rows], z, C)
        scale = 1 + z.abs().amax(dim=1, keepdim=True)
        wrong = torch.where(positive, z, w) < -WRONG_SIGN * scale
        count = wrong.sum(dim=1)
        left = count.nonzero().flatten()  # host sync
        rows, wrong, count = rows[left], wrong[left], count[left]
        if len(left) == 0:
            break
        patience = torch.where(count < fewest[left], PATIENCE, patience[left] - 1)
        fewest = torch.minimum(count, fewest[left])
        positive = positive[left] ^ torch.where(patience[:, None] >= 0, wrong, _last(wrong))
    return Z.clamp_(min=0), rows


def _last(wrong: Tensor) -> Tensor:
    """Only the last of the true entries of every row."""
    return wrong & (wrong.flip(1).cumsum(dim=1).flip(1) == 1)
