"""IMTL-G: the same progress along every gradient, whatever its norm."""

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._base import GramianAggregator, Property, check_gramian
from lightning_jd.aggregators._precision import in_float64, relative_tolerance
from lightning_jd.aggregators._registry import register


@register
class IMTLG(GramianAggregator):
    r"""Impartial multi-task learning, gradient part: equal projections onto all rows.

    .. math::
        \mathcal A(J) = J^\top w, \qquad
        w = \frac{v}{\mathbf 1^\top v} \text{ (0 if } \mathbf 1^\top v = 0 \text{)}, \qquad
        v = (J J^\top)^\dagger\, \delta,

    with :math:`\delta` the norms of the rows and :math:`\dagger` the pseudo-inverse. The weights
    sum to one. This is the generalisation of Quinton and Rey to any rank; for linearly independent
    rows it equals the original.

    The rank is determined from rows scaled to norm one, so it does not depend on their norms: an
    eigenvalue of their Gramian below :math:`10 \sqrt m\, \varepsilon` times the largest counts as
    zero, with :math:`\varepsilon` the machine precision of the dtype of the Gramian. A sum of
    :math:`v` that is within rounding error of zero counts as zero.

    Example:
        >>> import torch
        >>> IMTLG()(torch.tensor([[3.0, 0.0], [0.0, 1.0]]))
        tensor([0.7500, 0.7500])
        >>> IMTLG()(torch.tensor([[1.0], [-1.0], [-1.0]]))
        tensor([-3.])

    References:
        Liu et al., *Towards Impartial Multi-task Learning*, ICLR 2021; the generalisation:
        Quinton and Rey, *Jacobian Descent for Multi-Objective Optimization*, arXiv:2406.16232.
    """

    properties = frozenset({Property.WEIGHTED, Property.PERMUTATION_INVARIANT})
    keeps_small_tasks = True

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        check_gramian(gramian)
        tolerance = relative_tolerance(len(gramian), gramian.dtype)
        G = in_float64(gramian)
        norms = G.diagonal().clamp(min=0).sqrt()
        inverse_norms = torch.where(norms > 0, 1 / norms, 0.0)
        cosines = inverse_norms[:, None] * G * inverse_norms
        eigenvalues, E = torch.linalg.eigh(cosines)
        kept = eigenvalues > tolerance * eigenvalues[-1]
        eigenvalues, E = eigenvalues[kept], E[:, kept]  # (rank,), (m, rank)
        if len(eigenvalues) == int((norms > 0).sum()):
            # Independent rows: solve for the rows of norm one, then no step sees different scales.
            left, right = inverse_norms[:, None] * E, E / eigenvalues
        else:
            # G = F Fᵀ where F has full column rank; by its SVD the pseudo-inverse is U S⁻² Uᵀ.
            F = norms[:, None] * E * eigenvalues.sqrt()
            U, S, _ = torch.linalg.svd(F, full_matrices=False)
            left, right = U, norms[:, None] * U / S**2
        v = left @ right.sum(dim=0)
        # What rounding here, and in the Gramian, may leave of a sum that is zero.
        uncancelled = left.abs().sum(dim=0) @ right.abs().sum(dim=0)
        rounding = relative_tolerance(len(G), G.dtype) * uncancelled + tolerance * v.abs().sum()
        weights: Tensor = torch.where(v.sum().abs() <= rounding, 0.0, v / v.sum())
        return weights.to(gramian)
