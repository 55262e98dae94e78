"""IMTL-L: learned scales that make all losses alike."""

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
class IMTLL(Stateful, Balancer):
    r"""Impartial multi-task learning, the part that balances losses.

    .. math::
        \min_{\theta, s} \sum_{i=1}^{m} \bigl(e^{s_i} \ell_i(\theta) - s_i\bigr), \qquad
        w_i = e^{s_i}

    At the minimum over :math:`s` every scaled loss :math:`w_i \ell_i` is one. The scales begin with
    0 and are learned by an Adam of their own, whose state is part of the state dict. It is
    :class:`~lightning_jd.aggregators.UW` with weights twice as large.

    Args:
        lr: The learning rate of that Adam, positive.

    Raises:
        ArgumentError: If the learning rate is not positive and finite.

    Example:
        >>> balancer = IMTLL(lr=0.1)
        >>> for _ in range(500):
        ...     weights = balancer.weights(torch.tensor([0.5, 2.0]))
        >>> weights
        tensor([2.0000, 0.5000])

    References:
        Liu et al., *Towards Impartial Multi-task Learning*, ICLR 2021.
    """

    def __init__(self, lr: float = 1e-3) -> None:
        super().__init__()
        self.lr = positive("lr", lr)

    @override
    def balance(self, losses: Tensor, step: Step) -> Tensor:
        memory = self.memory(step)
        s = memory.recall("s", step.names, torch.zeros_like(losses))
        weights = s.exp()
        adam_step(memory, "s", step.names, s, weights * losses - 1, lr=self.lr)
        return weights
