"""PCD: a primary objective, and a least progress of all others."""

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import share
from lightning_jd.aggregators._base import Property, check_gramian
from lightning_jd.aggregators._dualcone import position_of
from lightning_jd.aggregators._memory import StatefulGramianAggregator
from lightning_jd.aggregators._precision import in_float64, relative_tolerance
from lightning_jd.aggregators._registry import register
from lightning_jd.aggregators._step import Step
from lightning_jd.linalg import halfspace_weights, min_norm_weights

_DEPENDENT = 1e-9  # a squared norm of unit rows, which float64 could still resolve


@register
class PCD(StatefulGramianAggregator):
    r"""Priority-constrained descent: the primary gradient, and some progress for each other one.

    .. math::
        \tilde d = \operatorname*{arg\,min}_{d \,:\, \tilde g_j^\top d \ge \tau \lVert \tilde g_j
        \rVert^2,\ j \ne p} \lVert d - \tilde g_p \rVert, \qquad
        \mathcal A(J) = \frac{\lVert g_p \rVert}{\lVert \tilde d \rVert} \tilde d, \qquad
        \tilde g_i = \frac{g_i}{\sqrt{v_i}}

    with the primary objective :math:`p`, and :math:`v_i` the moving average of
    :math:`\lVert g_i \rVert^2`, corrected for its start at zero. With :math:`\tau = 0`, every
    :math:`v_i = 1` and without the last scaling it is
    :class:`~lightning_jd.aggregators.Primary`.

    The scale of the other gradients has no influence, so the update is linear in the scales as long
    as they stay the same from step to step.

    If no direction satisfies all constraints (a convex combination of the other gradients at
    length one has a squared norm of at most 1e-9, or ten machine precisions of the Gramian), the
    update is :math:`g_p`. If :math:`\tilde d = 0` up to rounding, it is zero. The primary
    objective itself may get worse where it is nearly opposite to another.

    Args:
        tau: :math:`\tau`, from 0 to 1: the share of the progress of its own gradient that each
            other objective gets.
        primary: The name or the position of the primary objective.
        beta: Decay factor of the moving average, in [0, 1).

    Raises:
        ArgumentError: If an argument is out of its range; when called, if the primary objective
            does not exist.

    Example:
        >>> PCD(tau=0.5)(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
        tensor([1.7889, 0.8944])

    References:
        Varam et al., *Not All Objectives Are Born Equal: Priority-Constrained Descent for
        Hierarchical Multi-Objective Optimization*, TMLR 2026.
    """

    properties = frozenset({Property.LINEAR_UNDER_SCALING, Property.WEIGHTED})
    keeps_small_tasks = True

    def __init__(self, tau: float = 0.02, primary: str | int = 0, beta: float = 0.999) -> None:
        super().__init__()
        self.tau = share("tau", tau)
        self.primary = primary
        self.beta = share("beta", beta, below_one=True)

    @override
    def weigh(self, gramian: Tensor, step: Step) -> Tensor:
        check_gramian(gramian)
        G, p = in_float64(gramian), position_of(self.primary, step)
        squares = G.diagonal().clamp(min=0)
        scales = self._scales(squares, step)
        H = G * scales * scales[:, None]
        weights = _priority_weights(H, p, self.tau, relative_tolerance(1, gramian.dtype))
        length = weights @ H @ weights
        terms = (weights.abs() @ H.diagonal().clamp(min=0).sqrt()) ** 2
        is_zero = length <= relative_tolerance(1, gramian.dtype) * terms
        factor = torch.where(is_zero, 0.0, (squares[p] / length).sqrt())
        return (factor * scales * weights).to(gramian)

    def _scales(self, squares: Tensor, step: Step) -> Tensor:
        """``1 / sqrt(v)``, from the moving averages, which are updated."""
        memory, nothing = self.memory(step), squares.new_zeros(len(squares), 2)
        average, count = memory.recall("square", step.names, nothing).unbind(1)
        average, count = average.lerp(squares, 1 - self.beta), count + 1
        memory.keep("square", step.names, torch.stack([average, count], dim=1))
        return torch.where(average > 0, ((1 - self.beta**count) / average).sqrt(), 0.0)


def _priority_weights(H: Tensor, p: int, tau: float, precision: float) -> Tensor:
    """Weights of the direction nearest to row p that gives each other row its progress."""
    weights = H.new_zeros(len(H))
    weights[p] = 1
    squares = H.diagonal()
    others = [i for i in range(len(H)) if i != p and squares[i] > 0]
    if not others or not squares[p] > 0:
        return weights
    rest = H[others][:, others]
    norms = rest.diagonal().sqrt()
    unit = rest / norms / norms[:, None]
    v = min_norm_weights(unit)
    if tau > 0 and float(v @ unit @ v) <= max(_DEPENDENT, precision):
        return weights  # no direction helps them all
    weights[others] = halfspace_weights(rest, tau * rest.diagonal() - H[others, p])
    return weights
