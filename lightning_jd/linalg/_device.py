"""On an accelerator: a fixed number of kernels, and nothing that the host would have to wait for.

Factorisations are taken in float32, because float64 is slow on most accelerators. What decides the
accuracy, ``w = Cz + q``, is computed in the precision of ``C``; in float64 it also keeps out of
reduced-precision modes of matrix products (TF32), which may be switched on for the network.
"""

import torch
from torch import Tensor

from lightning_jd.linalg._conjugate import ConjugateGradients
from lightning_jd.linalg._guess import Guess
from lightning_jd.linalg._stages import natural_residual

ROUNDS = 32
NEWTON = 5
SYSTEMS = 1 << 26  # numbers in all systems of a Newton step, of 4 bytes each
BURSTS, STEPS = 10, 6  # where the systems would take more memory than that


def solve_on_device(C: Tensor, Q: Tensor) -> tuple[Tensor, Tensor]:
    """``Z`` (k, m) for the rows of ``Q``, and its largest natural residual (NaN if it failed)."""
    v = Guess(C, Q).iterate(ROUNDS)
    Z = _newton(C, Q, v) if Q.numel() * len(C) <= SYSTEMS else _conjugate(C, Q, v)
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
