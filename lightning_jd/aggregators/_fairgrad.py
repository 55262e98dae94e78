"""FairGrad: the update of an alpha-fair allocation between the objectives."""

from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import positive
from lightning_jd.aggregators._base import GramianAggregator, Property, check_gramian
from lightning_jd.aggregators._fairness import fair_weights
from lightning_jd.aggregators._precision import in_float64, relative_tolerance
from lightning_jd.aggregators._registry import register
from lightning_jd.errors import ArgumentError


@register
class FairGrad(GramianAggregator):
    r"""The direction that maximises an alpha-fair utility of all improvements.

    .. math::
        \mathcal A(J) = J^\top w, \qquad G w = w^{-1/\alpha} \text{ (element-wise)}, \quad w \succ 0

    For :math:`\alpha = 1` the direction is that of :class:`~lightning_jd.aggregators.NashMTL`; a
    larger :math:`\alpha` emphasises the smallest improvement. The equation is the optimality
    condition of a convex program, which damped Newton steps solve for rows scaled to norm one. If
    no direction improves all objectives (a Pareto-stationary point, or a zero row), there is no
    solution and the update is zero; the threshold is that of Nash-MTL.

    The update does not scale linearly: scaling all gradients by :math:`t` scales it by
    :math:`t^{(1 - \alpha) / (1 + \alpha)}`.

    Args:
        alpha: The fairness parameter :math:`\alpha`; positive.

    Raises:
        ArgumentError: If ``alpha`` is not positive and finite, or too small for the norms of the
            rows.

    Example:
        >>> import torch
        >>> FairGrad(alpha=1.0)(torch.tensor([[4.0, 0.0], [0.0, 0.1]]))
        tensor([1., 1.])

    References:
        Ban and Ji, *Fair Resource Allocation in Multi-Task Learning*, ICML 2024, arXiv:2402.15638.
    """

    properties: ClassVar[frozenset[Property]] = frozenset(
        {Property.NON_CONFLICTING, Property.WEIGHTED, Property.PERMUTATION_INVARIANT}
    )
    keeps_small_tasks = True

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.alpha = positive("alpha", alpha)

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        check_gramian(gramian)
        G, p = in_float64(gramian), 1 / self.alpha
        norms = G.diagonal().clamp(min=0).sqrt()
        if not bool((norms > 0).all()):
            return gramian.new_zeros(len(gramian))
        scale = norms.log().mean().exp()  # common to all rows: x is then of order one
        relative = norms / scale
        cosines = G / norms / norms[:, None]
        tolerance = relative_tolerance(1, gramian.dtype)
        # With w = x / norm, row i of the equation is (C x)_i = norm_i^(p - 1) x_i^(-p).
        try:
            x = fair_weights(cosines, relative ** (p - 1), p, tolerance, "FairGrad")
        except RuntimeError as error:  # LinAlgError is one
            raise ArgumentError(
                "`alpha` must be large enough for weights that float64 can compute, got "
                f"alpha={self.alpha} for rows with norms from {float(norms.min()):.3g} to "
                f"{float(norms.max()):.3g}. Choose a larger alpha (0.5 or more), or normalise the "
                "losses."
            ) from error
        if x is None:
            return gramian.new_zeros(len(gramian))
        weights: Tensor = x / relative * scale ** (-2 / (1 + p))
        return weights.to(gramian)
