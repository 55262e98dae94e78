"""Aligned-MTL: make the rows orthogonal and equally long, then average them."""

import math

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._base import GramianAggregator, Property, check_gramian
from lightning_jd.aggregators._precision import in_float64, relative_tolerance
from lightning_jd.aggregators._registry import register


@register
class AlignedMTL(GramianAggregator):
    r"""The mean of the rows of :math:`J` after all its singular values are set to the smallest.

    .. math::
        \mathcal A(J) = \frac1m J^\top w, \qquad
        w = \sigma_{\min} V \Sigma^\dagger V^\top \mathbf 1, \qquad J J^\top = V \Sigma^2 V^\top,

    with :math:`\sigma_{\min}` the smallest non-zero singular value.

    The result depends on the numerical rank, because :math:`\sigma_{\min}` jumps when the rank
    changes. An eigenvalue of the Gramian below :math:`10 \sqrt m\, \varepsilon` times the largest
    counts as zero, with :math:`\varepsilon` the machine precision of the dtype of the Gramian. So
    singular values down to about 1e-7 (float64) or 1e-3 (float32) of the largest are resolved. A
    zero Jacobian gives zero weights.

    Example:
        >>> import torch
        >>> AlignedMTL()(torch.tensor([[1.0, 0.0], [0.0, 0.5]]))
        tensor([0.2500, 0.2500])

    References:
        Senushkin et al., *Independent Component Alignment for Multi-Task Learning*, CVPR 2023.
    """

    properties = frozenset({Property.WEIGHTED, Property.PERMUTATION_INVARIANT})

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        check_gramian(gramian)
        squares, V = torch.linalg.eigh(in_float64(gramian))
        nonzero = squares > relative_tolerance(len(V), gramian.dtype) * squares[-1]
        smallest = torch.where(nonzero, squares, math.inf).min()
        ratios = torch.where(nonzero, (smallest / squares).sqrt(), 0.0)  # sigma_min / sigma
        weights: Tensor = V @ (ratios * V.mean(dim=0))
        return weights.to(gramian)
