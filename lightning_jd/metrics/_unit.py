"""Gradients scaled to length one: the numbers behind every metric, free of the losses' units."""

import torch
from torch import Tensor

from lightning_jd.errors import ArgumentError, ShapeError
from lightning_jd.linalg import check_square

# Two vectors conflict if their cosine is below -TOLERANCE. Lengths are taken from a Gramian only
# down to the square root of its rounding (3e-4 in float32), so anything closer to zero is noise.
TOLERANCE = 1e-3


def unit_gramian(gramian: Tensor) -> tuple[Tensor, Tensor]:
    r"""Split :math:`G` into cosines :math:`C_{ij} = G_{ij} / (n_i n_j)` and norms :math:`n_i`.

    A zero gradient has no direction: its cosines are 0, also the one with itself. Half precision
    is computed in float32. NaN and infinity become NaN, never a cosine.

    Returns:
        The cosines (m, m) and the norms (m,).
    """
    check_square("gramian", gramian)
    G = single_or_double(gramian)
    norms = G.diagonal().clamp(min=0).sqrt()
    inverse = norms.reciprocal().masked_fill_(norms == 0, 0.0)
    return G * inverse * inverse[:, None], norms


def single_or_double(tensor: Tensor) -> Tensor:
    """The tensor without its graph, in float32 unless it is float64 already."""
    # Every call counts: small tensors cost what it takes to dispatch an operation.
    if tensor.requires_grad:
        tensor = tensor.detach()
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def check_weights(weights: Tensor, m: int) -> None:
    """Raise unless ``weights`` has shape (m,)."""
    if weights.shape != (m,):
        raise ShapeError(
            f"`weights` must have one entry per objective ({m}), got shape {tuple(weights.shape)}."
        )


def check_tolerance(tolerance: float) -> None:
    """Raise unless ``tolerance`` is a cosine that can be exceeded."""
    if not 0 <= tolerance < 1:
        raise ArgumentError(f"`tolerance` must be in [0, 1), got {tolerance}.")


def share_below(cosines: Tensor, tolerance: float) -> Tensor:
    """Share of the last axis that is below ``-tolerance``; a NaN stays one instead of "no"."""
    return (cosines < -tolerance).to(cosines.dtype).mean(dim=-1) + 0 * cosines.sum(dim=-1)
