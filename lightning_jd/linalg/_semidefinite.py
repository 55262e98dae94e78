"""Is a matrix a Gramian at all? What is not would get an answer that means nothing."""

from contextvars import ContextVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_jd.errors import ShapeError
from lightning_jd.linalg._lapack import routines

#: Relative to the largest entry; far above rounding, also of half-precision gradients.
_SLACK = 1e-3
#: Up to this size eigenvalues are looked at, beyond it pairs of rows only.
_SMALL = 16


#: Whether Gramians come from our own engines, which need not be doubted in every step.
_TRUSTED: ContextVar[bool] = ContextVar("trusted", default=False)


class gramians_trusted:  # noqa: N801  # a context, which is called like a function
    """Skip the checks of Gramians in this context: the step has made and checked them."""

    def __enter__(self) -> None:
        self._before = _TRUSTED.set(True)

    def __exit__(self, *_: object) -> None:
        _TRUSTED.reset(self._before)


def are_gramians_trusted() -> bool:
    """Whether :func:`gramians_trusted` is in force."""
    return _TRUSTED.get()


def check_semidefinite(name: str, matrix: Tensor) -> None:
    """Raise if a square matrix is clearly not symmetric or clearly not positive semi-definite.

    On an accelerator nothing is looked at, because the host would have to wait. Entries that are
    not finite are the business of :func:`check_finite`.

    Raises:
        ShapeError: With the entries that show it.

    Example:
        >>> check_semidefinite("gramian", torch.tensor([[1.0, -2.0], [-2.0, 1.0]]))
        Traceback (most recent call last):
        ...
        lightning_jd.errors.ShapeError: `gramian` must be positive semi-definite, got -2 for \
rows 0 and 1, whose own entries are 1 and 1. Is it a Gramian, J @ J.T?
    """
    if _TRUSTED.get() or not matrix.is_cpu:
        return
    G = _as_float64(matrix)
    if 2 < len(G) <= _SMALL and _is_clearly_fine(G):
        return
    with np.errstate(all="ignore"):
        scale = np.abs(G).max(initial=0.0)
        if not np.isfinite(scale) or scale == 0:
            return
        if np.abs(G - G.T).max() > _SLACK * scale:
            i, j = np.unravel_index(np.abs(G - G.T).argmax(), G.shape)
            raise ShapeError(
                f"`{name}` must be symmetric, got {G[i, j]:.4g} and {G[j, i]:.4g} for rows {i} "
                f"and {j}. Is it a Gramian, J @ J.T?"
            )
        diagonal = G.diagonal()
        if diagonal.min() < -_SLACK * scale:
            raise ShapeError(
                f"`{name}` must be positive semi-definite, got {diagonal.min():.4g} on its "
                f"diagonal, in row {diagonal.argmin()}. Is it a Gramian, J @ J.T?"
            )
        norms = np.sqrt(diagonal.clip(min=0))
        excess = np.abs(G) - np.multiply.outer(norms, norms)
        if excess.max() > _SLACK * scale:
            i, j = sorted(np.unravel_index(excess.argmax(), G.shape))
            raise ShapeError(
                f"`{name}` must be positive semi-definite, got {G[i, j]:.4g} for rows {i} and {j}, "
                f"whose own entries are {G[i, i]:.4g} and {G[j, j]:.4g}. Is it a Gramian, J @ J.T?"
            )
    if 2 < len(G) <= _SMALL:
        _check_eigenvalues(name, G, float(scale))


def _as_float64(matrix: Tensor) -> NDArray[np.float64]:
    tensor = matrix.detach()
    if tensor.dtype == torch.bfloat16:  # unknown to NumPy
        tensor = tensor.float()
    array: NDArray[np.float64] = tensor.numpy().astype(np.float64)
    return array


def _is_clearly_fine(G: NDArray[np.float64]) -> bool:
    """Whether G is symmetric and one factorisation proves all that the checks would look for.

    If ``G + sI`` is positive definite, no entry exceeds the norms of its rows by more than
    ``√(2 s scale)``, where scale is the largest entry: so much is within the slack.
    """
    scale = max(np.maximum.reduce(G, axis=None), -np.minimum.reduce(G, axis=None))
    if not 0 < scale < np.inf or np.maximum.reduce(G - G.T, axis=None) > _SLACK * scale:
        return False
    shifted = G.copy()
    shifted.flat[:: len(G) + 1] += _SLACK**2 / 4 * scale
    _, failed = routines().dpotrf(shifted, lower=1, overwrite_a=1)
    return not failed


def _check_eigenvalues(name: str, G: NDArray[np.float64], scale: float) -> None:
    try:
        np.linalg.cholesky(G + 2 * len(G) * _SLACK * scale * np.eye(len(G)))
    except np.linalg.LinAlgError:
        least = float(np.linalg.eigvalsh(G)[0])
        raise ShapeError(
            f"`{name}` must be positive semi-definite, got the eigenvalue {least:.4g}. Is it a "
            "Gramian, J @ J.T?"
        ) from None
