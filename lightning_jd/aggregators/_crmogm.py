"""CR-MOGM: the weights of another method, averaged over steps."""

from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import share
from lightning_jd.aggregators._memory import StatefulGramianAggregator
from lightning_jd.aggregators._precision import in_float64
from lightning_jd.aggregators._registry import register
from lightning_jd.aggregators._step import Step
from lightning_jd.aggregators._wrapper import Wrapped, Wrapper


@register
class CRMOGM(Wrapper, StatefulGramianAggregator):
    r"""Correction of multi-objective gradient manipulation: a moving average of weights.

    .. math::
        \mathcal A(J_t) = J_t^\top \lambda_t, \qquad
        \lambda_t = \alpha \lambda_{t-1} + (1 - \alpha)\, w(G_t)

    with :math:`w` the weights of the wrapped aggregator. The average of a task starts at its first
    weight. The guarantees of the wrapped aggregator for a single step do not carry over to the
    average, so the only claimed property is that the update is a weighted sum of the rows.

    Args:
        aggregator: The wrapped aggregator, which must compute weights: a name, a dict with a name
            and arguments, or an object.
        alpha: Decay factor, from 0 (the wrapped aggregator itself) to 1 (the weights of the first
            step).

    Raises:
        ArgumentError: If ``alpha`` is not in [0, 1], or the wrapped aggregator does not compute
            weights.

    Example:
        >>> import torch
        >>> smooth = CRMOGM("mgda", alpha=0.5)
        >>> smooth.weights(torch.diag(torch.tensor([1.0, 1.0])))
        tensor([0.5000, 0.5000])
        >>> smooth.weights(torch.diag(torch.tensor([0.0, 1.0])))
        tensor([0.7500, 0.2500])

    References:
        Zhou et al., *On the Convergence of Stochastic Multi-Objective Gradient Manipulation and
        Beyond*, NeurIPS 2022.
    """

    def __init__(
        self,
        aggregator: Wrapped = "upgrad",
        alpha: float = 0.9,
    ) -> None:
        super().__init__(aggregator)
        self.alpha = share("alpha", alpha)

    @override
    def weigh(self, gramian: Tensor, step: Step) -> Tensor:
        newest = in_float64(self.aggregator.weigh(gramian, step))
        memory = self.memory(step)
        past = memory.recall("weight", step.names, newest)
        weights = self.alpha * past + (1 - self.alpha) * newest
        memory.keep("weight", step.names, weights)
        return weights.to(gramian)
