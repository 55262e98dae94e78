"""The only shape and value checks of the package: every public function starts with one."""

import torch
from torch import Tensor

from lightning_jd.errors import NonFiniteError, ShapeError


def check_matrix(name: str, matrix: Tensor) -> None:
    """Raise unless ``matrix`` has shape (m, n) with m >= 1 and floating-point entries."""
    if not isinstance(matrix, Tensor):
        has = hasattr(type(matrix), name)  # a report
        raise ShapeError(
            f"`{name}` must be a tensor, got {type(matrix).__name__}. "
            + (f"Pass its `{name}`." if has else "Convert it with `torch.as_tensor(...)`.")
        )
    if matrix.ndim != 2:
        raise ShapeError(f"`{name}` must have shape (m, n), got {tuple(matrix.shape)}.")
    if matrix.shape[0] == 0:
        raise ShapeError(f"`{name}` must have at least one row, got shape {tuple(matrix.shape)}.")
    if not matrix.is_floating_point():
        raise ShapeError(f"`{name}` must be floating-point, got {matrix.dtype}. Convert it first.")


def check_square(name: str, matrix: Tensor) -> None:
    """Raise unless ``matrix`` has shape (m, m) with m >= 1."""
    check_matrix(name, matrix)
    if matrix.shape[0] != matrix.shape[1]:
        raise ShapeError(f"`{name}` must be square, got shape {tuple(matrix.shape)}.")


def check_finite(name: str, matrix: Tensor) -> None:
    """Raise if an entry of ``matrix`` is NaN or infinite, naming the rows (one host sync)."""
    if bool(torch.isfinite(matrix).all()):
        return
    bad = _culprits(~torch.isfinite(matrix)).nonzero().flatten().tolist()
    shown = ", ".join(map(str, bad[:10])) + (", ..." if len(bad) > 10 else "")
    raise NonFiniteError(
        f"`{name}` must be finite, got NaN or infinity in row(s) {shown} of {len(matrix)}. "
        "Look at the losses of these objectives: one of them overflowed or divided by zero."
    )


def _culprits(bad: Tensor) -> Tensor:
    """The rows to blame. In a Gramian, one objective spoils a whole column and so every row."""
    rows = bad.flatten(start_dim=1).any(dim=1)
    if bad.ndim == 2 and bad.shape[0] == bad.shape[1] and bool((bad == bad.T).all()):
        diagonal = bad.diagonal()
        if not bool((bad & ~diagonal & ~diagonal[:, None]).any()):
            return diagonal
    return rows
