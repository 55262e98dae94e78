"""The same programs by any solver that qpsolvers knows: slower, and as independent as it gets."""

import numpy as np
import torch
from torch import Tensor

from lightning_jd.errors import ArgumentError, UnknownNameError
from lightning_jd.linalg._stages import least_shift

OWN = ("auto", "batched")
STRICTLY_CONVEX = 1e-12  # least eigenvalue that solvers by Cholesky accept


def check_solver(solver: str) -> None:
    """Raise unless ``solver`` is one of ours or one that qpsolvers finds installed."""
    if solver in OWN:
        return
    from qpsolvers import available_solvers  # takes long to import, and few need it

    if solver not in available_solvers:
        raise UnknownNameError.of("solver", solver, [*OWN, *available_solvers])


def solve_with(solver: str, C: Tensor, Q: Tensor, noise: float) -> Tensor:
    """``argmin ½ zᵀCz + qᵀz, z >= 0`` for every row q of ``Q`` (k, m), by the named solver."""
    from qpsolvers import solve_qp

    matrix = least_shift(C, max(noise, STRICTLY_CONVEX)).cpu().numpy()
    zeros = np.zeros(len(matrix))
    rows = []
    for index, q in enumerate(Q.cpu().numpy()):
        try:
            z = solve_qp(matrix, q, lb=zeros, solver=solver)
        except Exception as error:  # every solver has its own errors: translate them all
            raise _failure(solver, index, len(Q), error) from error
        if z is None:
            raise _failure(solver, index, len(Q), "no solution was found")
        rows.append(np.maximum(z, 0))
    return torch.from_numpy(np.stack(rows)).to(C)


def _failure(solver: str, row: int, rows: int, reason: object) -> ArgumentError:
    return ArgumentError(
        f"`solver` must be able to solve the program, got {solver!r}, which failed on target {row} "
        f"of {rows}: {reason}. Choose solver='auto', which never fails, or raise `reg`."
    )
