"""Is a matrix a Gramian at all? What is not would get an answer that means nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_jd.errors import ShapeError

#: Relative to the largest entry; far above rounding, also of half-precision gradients.
_SLACK = 1e-3
#: Up to this size eigenvalues are looked at, beyond it pairs of rows only.
_SMALL = 16


#: Whether Gramians come from our own engines, which need not be doubted in every step.
_TRUSTED: ContextVar[bool] = ContextVar("trusted", default=False)


@contextmanager
def gramians_trusted() -> Iterator[None]:
    """Meanwhile :func:`check_semidefinite` looks at nothing, which saves some 20 microseconds."""
    before = _TRUSTED.set(True)
    try:
        yield
    finally:
        _TRUSTED.reset(before)


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
    if _TRUSTED.get() or matrix.device.type != "cpu":
        return
    G = matrix.detach().to(torch.float64).numpy()
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


def _check_eigenvalues(name: str, G: NDArray[np.float64], scale: float) -> None:
    try:
        np.linalg.cholesky(G + 2 * len(G) * _SLACK * scale * np.eye(len(G)))
    except np.linalg.LinAlgError:
        least = float(np.linalg.eigvalsh(G)[0])
        raise ShapeError(
            f"`{name}` must be positive semi-definite, got the eigenvalue {least:.4g}. Is it a "
            "Gramian, J @ J.T?"
        ) from None
