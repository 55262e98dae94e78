"""Last resort: a batched interior-point method, which no degenerate active set can trap.

Mehrotra's predictor-corrector for ``z >= 0, w = Cz + q >= 0, z ∘ w = 0``, all rows at once. Where
the corrector overshoots, a plainly centred step is taken instead; the best iterate is kept.

References:
    Mehrotra, *On the implementation of a primal-dual interior point method*, 1992.
"""

import torch
from torch import Tensor

ITERATIONS = 40
BATCH = 1 << 20  # numbers in one batch of systems
TO_THE_BOUNDARY = 0.995


def interior_point(C: Tensor, Q: Tensor, *, tolerance: float) -> Tensor:
    """``Z`` (k, m), each row to the natural residual ``tolerance`` or as near as it gets."""
    per_batch = max(1, BATCH // len(C) ** 2)
    return torch.cat([_interior_point(C, q, tolerance) for q in Q.split(per_batch)])


def _interior_point(C: Tensor, Q: Tensor, tolerance: float) -> Tensor:
    z = torch.ones_like(Q)
    w = torch.addmm(Q, z, C).clamp_(min=1.0)
    best, least = z, torch.full_like(Q[:, 0], torch.inf)
    for _ in range(ITERATIONS):
        slack = torch.addmm(Q, z, C)
        residual = torch.minimum(z, slack).abs().amax(dim=1) / (1 + z.amax(dim=1))
        better = residual < least
        best = torch.where(better[:, None], z, best)
        least = torch.where(better, residual, least)
        if bool((least <= tolerance).all()):  # host sync
            break
        z, w = _step(C, z, w, infeasibility=slack - w)
    return best


def _step(C: Tensor, z: Tensor, w: Tensor, infeasibility: Tensor) -> tuple[Tensor, Tensor]:
    mu = (z * w).mean(dim=1, keepdim=True)
    A = C.expand(len(z), -1, -1).clone()
    A.diagonal(dim1=1, dim2=2).add_(w / z)
    L = torch.linalg.cholesky_ex(A).L

    def direction(complementarity: Tensor) -> tuple[Tensor, Tensor]:
        rhs = (complementarity / z - infeasibility).unsqueeze(-1)
        dz = torch.cholesky_solve(rhs, L).squeeze(-1)
        return dz, (complementarity - w * dz) / z

    dz, dw = direction(-z * w)
    length = _longest(z, dz, w, dw)
    ratio = ((z + length * dz) * (w + length * dw)).mean(dim=1, keepdim=True) / mu
    candidates = []
    for complementarity in (-z * w - dz * dw + ratio**3 * mu, -z * w + 0.1 * mu):
        cz, cw = direction(complementarity)
        length = TO_THE_BOUNDARY * _longest(z, cz, w, cw)
        new_z, new_w = z + length * cz, w + length * cw
        merit = (new_z * new_w).mean(dim=1, keepdim=True)
        merit = merit + (1 - length) * infeasibility.abs().amax(dim=1, keepdim=True)
        candidates.append((new_z, new_w, merit))
    (z1, w1, merit1), (z2, w2, merit2) = candidates
    first = (merit1 <= merit2) & merit1.isfinite()
    new_z, new_w = torch.where(first, z1, z2), torch.where(first, w1, w2)
    sound = ((new_z > 0) & (new_w > 0) & new_z.isfinite() & new_w.isfinite()).all(dim=1)
    return torch.where(sound[:, None], new_z, z), torch.where(sound[:, None], new_w, w)


def _longest(z: Tensor, dz: Tensor, w: Tensor, dw: Tensor) -> Tensor:
    """The longest step, at most 1, that keeps ``z`` and ``w`` non-negative."""
    ratios = torch.cat(
        [
            torch.where(dz < 0, -z / dz, torch.inf),
            torch.where(dw < 0, -w / dw, torch.inf),
        ],
        dim=1,
    )
    return ratios.amin(dim=1, keepdim=True).clamp(max=1.0)
