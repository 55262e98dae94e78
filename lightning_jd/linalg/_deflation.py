"""A preconditioner for all active sets of one matrix: its few large eigenvalues are divided out.

Gradients of examples of one class resemble each other, so that the Gramian of a batch has about one
large eigenvalue for each class; without it, all others are of one size. With an orthonormal basis U
of the large ones, ``C ≈ σI + U B Uᵀ`` with a small matrix B, and on a set P, by Woodbury's formula,

    σ C_PP⁻¹  ≈  I - U_P (σB⁻¹ + U_PᵀU_P)⁻¹ U_Pᵀ :

one small inverse for each set.
"""

import torch
from torch import Tensor

RANK = 12
POWERS = 2  # of C, applied to random vectors: the large eigenvalues are far from the others


class Deflation:
    """The preconditioner of ``C`` (m, m), in float32 and without any host sync."""

    def __init__(self, C: Tensor) -> None:
        m = len(C)
        # Their own generator: the weights must not depend on, or disturb, the caller's.
        random = torch.randn(m, RANK, generator=torch.Generator().manual_seed(m))
        self._U = random.to(C.device, non_blocking=True)
        for _ in range(POWERS):
            self._U = torch.linalg.qr(C @ self._U).Q
        H = self._U.T @ (C @ self._U)
        # Half of the mean of the other eigenvalues, so that B is safely positive.
        sigma = (m - H.trace()) / (m - RANK) / 2
        H.diagonal().sub_(sigma)
        self._core = sigma * torch.linalg.inv_ex(H).inverse
        self._transposed = self._U.T.contiguous()
        self._squares = (self._U[:, :, None] * self._U[:, None, :]).flatten(start_dim=1)

    def factorise(self, inside: Tensor) -> None:
        """Prepare for the sets P, one for each row: ones where ``inside``, else zeros."""
        small = (inside @ self._squares).reshape(-1, RANK, RANK).add_(self._core)
        self._inverse = torch.linalg.inv_ex(small).inverse

    def __call__(self, g: Tensor, inside: Tensor) -> Tensor:
        """About ``σ C_PP⁻¹ g_P`` for every row of ``g``."""
        coefficients = torch.bmm((g @ self._U).unsqueeze(1), self._inverse).squeeze(1)
        return torch.addmm(g, coefficients, self._transposed, alpha=-1).mul_(inside)
