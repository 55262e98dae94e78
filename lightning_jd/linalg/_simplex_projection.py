"""Euclidean projection onto the probability simplex."""

import torch
from torch import Tensor


def simplex_projection(vector: Tensor) -> Tensor:
    r"""The nearest point with entries that are not negative and add up to one.

    .. math:: \operatorname*{arg\,min}_{w \succeq 0,\ \mathbf 1^\top w = 1} \lVert w - v \rVert
        = \max(v - \tau, 0)

    with the :math:`\tau` for which the sum is one.

    Args:
        vector: :math:`v`, shape ``(m,)``.

    Example:
        >>> simplex_projection(torch.tensor([1.0, 0.5, -2.0]))
        tensor([0.7500, 0.2500, 0.0000])
    """
    vector = vector - vector.max()  # the same projection, and 1 is not lost beside large entries
    ordered = vector.sort(descending=True).values
    counts = torch.arange(1, len(vector) + 1, dtype=vector.dtype, device=vector.device)
    thresholds = (ordered.cumsum(dim=0) - 1) / counts
    last = (ordered > thresholds).sum(dim=0, keepdim=True) - 1  # the first entry always stays
    tau = thresholds.gather(0, last)  # an index by a number would make the host wait
    return (vector - tau).clamp(min=0)
