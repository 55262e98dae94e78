"""One right-hand side (DualProj, MGDA, CAGrad): pivoting without the machinery for many."""

import math

import numpy as np
import torch

from lightning_jd.linalg import _pivoting, _stages
from lightning_jd.linalg._arrays import Array, Mask, is_positive_definite
from lightning_jd.linalg._lapack import routines

ROUNDS = 40


def solve_single(
    C: Array,
    q: Array,
    noise: float,
    *,
    unique: bool | None = None,
    positive: Mask | None = None,
) -> Array:
    """``z >= 0, w = Cz + q >= 0, zᵀw = 0`` with ``C`` on the unit diagonal.

    Args:
        C: The matrix, shape (m, m).
        q: The vector, shape (m,).
        noise: How well the eigenvalues of ``C`` are known.
        unique: Whether ``C`` is known to be positive definite; None is to find out.
        positive: Where z is probably positive; None is where q is negative.
    """
    if q.min() >= 0:
        return np.zeros_like(q)
    scale = np.abs(q).max()
    q = q / scale
    # Where C is singular, some solution is not enough: the robust stages return the shortest.
    if unique is None:
        unique = is_positive_definite(C, _stages.UNIQUE)
    found = exchange(C, q, q < 0 if positive is None else positive) if unique else None
    if found is not None:
        z, _ = found
    else:
        z = _stages.solve(torch.from_numpy(C), torch.from_numpy(q)[None], noise)[0].numpy()
    solution: Array = z * scale
    return solution


def exchange(C: Array, q: Array, positive: Mask) -> tuple[Array, Array] | None:
    """``z`` and ``w`` by block principal pivoting; None if not found, or not accurate."""
    solve = routines().dposv
    fewest, patience = len(q) + 1, _pivoting.PATIENCE
    for _ in range(ROUNDS):
        P = positive.nonzero()[0]
        z = np.zeros(len(q))
        if len(P) > 0:
            # LAPACK works in place on columns, which for a symmetric matrix are the rows.
            A = C.take(P, 0).take(P, 1).T
            _, z[P], failed = solve(A, -q[P], overwrite_a=1, overwrite_b=1)
            if failed:
                return None
        w = C.dot(z)
        w += q
        size = 1 + math.sqrt(z.dot(z))
        wrong = np.where(positive, z, w) < -_pivoting.WRONG_SIGN * size
        count = int(np.count_nonzero(wrong))
        if count == 0:
            np.maximum(z, 0, out=z)
            accurate = np.abs(np.minimum(z, w)).max() <= _stages.TOLERANCE * size
            return (z, w) if accurate else None
        patience = _pivoting.PATIENCE if count < fewest else patience - 1
        fewest = min(count, fewest)
        if patience < 0:  # one at a time cannot cycle
            wrong[: wrong.nonzero()[0][-1]] = False
        positive = positive ^ wrong
    return None
