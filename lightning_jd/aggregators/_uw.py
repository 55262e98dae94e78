"""UW: weights from the uncertainty of each task, which is learned."""

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._adam import adam_step
from lightning_jd.aggregators._arguments import positive
from lightning_jd.aggregators._balancer import Balancer
from lightning_jd.aggregators._memory import Stateful
from lightning_jd.aggregators._registry import register
from lightning_jd.aggregators._step import Step


@register
class UW(Stateful, Balancer):
    r"""Uncertainty weighting with learned log-variances :math:`s`.

    .. math::
        \min_{\theta, s} \sum_{i=1}^{m} \tfrac12 \bigl(e^{-s_i} \ell_i(\theta) + s_i\bigr), \qquad
        w_i = \tfrac12 e^{-s_i}

    The log-variances begin with 0 and are learned by an Adam of their own, whose state is part of
    the state dict. The optimizer of the module is not concerned. Weights are those before the step
    of Adam, as if one optimizer had taken both steps at once.

    Args:
        lr: The learning rate of that Adam, positive.

    Raises:
        ArgumentError: If the learning rate is not positive and finite.

    Example:
        >>> balancer = UW(lr=0.1)
        >>> for _ in range(500):
        ...     weights = balancer.weights(torch.tensor([0.5, 2.0]))
        >>> weights  # 1 / (2 loss), where the sum is least
        tensor([1.0000, 0.2500])

    References:
        Kendall, Gal and Cipolla, *Multi-Task Learning Using Uncertainty to Weigh Losses for Scene
        Geometry and Semantics*, CVPR 2018.
    """

    def __init__(self, lr: float = 1e-3) -> None:
        super().__init__()
        self.lr = positive("lr", lr)

    @override
    def balance(self, losses: Tensor, step: Step) -> Tensor:
        memory = self.memory(step)
        s = memory.recall("s", step.names, torch.zeros_like(losses))
        weights = 0.5 * (-s).exp()
        adam_step(memory, "s", step.names, s, 0.5 - weights * losses, lr=self.lr)
        return weights
