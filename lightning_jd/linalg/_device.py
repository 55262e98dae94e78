"""On an accelerator: a fixed number of kernels, and nothing that the host would have to wait for.

Factorisations are taken in float32, because float64 is slow on most accelerators. What decides the
accuracy, ``w = Cz + q``, is computed in float32 too where a residual of 1e-6 is asked for, which it
reaches with room to spare; else in the precision of ``C``. The residual is always that of ``C``.
"""

import torch
from torch import Tensor

from lightning_jd.linalg._conjugate import ConjugateGradients
from lightning_jd.linalg._guess import Guess
from lightning_jd.linalg._host import SINGLE
from lightning_jd.linalg._stages import natural_residual

ROUNDS = 32
NEWTON = 5
SYSTEMS = 1 << 26  # numbers in all systems of a Newton step, of 4 bytes each
BURSTS, STEPS = 10, 6  # where the systems would take more memory than that


def solve_on_device(C: Tensor, Q: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """``Z`` (k, m) for the rows of ``Q``, and its largest natural residual (NaN if it failed).

    Args:
        C: Shape (m, m).
        Q: Shape (k, m).
        tolerance: The residual that will do.
    """
    v = Guess(C, Q).iterate(ROUNDS)
    if Q.numel() * len(C) > SYSTEMS:  # its residuals in float32 would be some 1e-6
        Z = _conjugate(C, Q, v)
    elif tolerance >= SINGLE and torch.get_float32_matmul_precision() == "highest":
        Z = _newton(C.float(), Q.float(), v).to(C.dtype)
    else:
        Z = _newton(C, Q, v)
    return Z, natural_residual(C, Q, Z).amax()


def _newton(C: Tensor, Q: Tensor, v: Tensor) -> Tensor:
    """Solve for the entries inside each set, with rows of the identity outside; change the sets."""
    single = C.to(torch.float32)
    identity = torch.eye(len(C), dtype=single.dtype, device=C.device)
    inside = v > 0
    Z = v.clamp_(min=0).to(C.dtype)
    for _ in range(NEWTON):
        slack = torch.addmm(Q, Z, C).mul_(inside).to(torch.float32)
        pairs = inside.unsqueeze(1) & inside.unsqueeze(2)
        factor = torch.linalg.cholesky_ex(torch.where(pairs, single, identity)).L
        Z = Z - torch.cholesky_solve(slack.unsqueeze(2), factor).squeeze(2)
        inside = torch.where(inside, Z, -torch.addmm(Q, Z, C)) > 0
        Z *= inside
    return Z


def _conjugate(C: Tensor, Q: Tensor, v: Tensor) -> Tensor:
    search = ConjugateGradients(C, Q, v)
    for _ in range(BURSTS):
        search.residual()
        search.burst(STEPS)
    return search.z
