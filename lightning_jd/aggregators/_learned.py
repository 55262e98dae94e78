"""Balancers that learn one number per task with an Adam of their own."""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import positive
from lightning_jd.aggregators._balancer import Balancer
from lightning_jd.aggregators._memory import Memory, Stateful
from lightning_jd.aggregators._registry import register
from lightning_jd.aggregators._step import Step

_BETAS, _EPS = (0.9, 0.999), 1e-8  # those of torch.optim.Adam


def adam_step(
    memory: Memory,
    key: str,
    names: Sequence[str],
    value: Tensor,
    gradient: Tensor,
    *,
    lr: float,
    weight_decay: float = 0.0,
) -> Tensor:
    """Take one step, and keep the new value and the moments; those of other tasks stay.

    The moments of a task are corrected for the number of its own steps.

    Args:
        memory: Where everything is kept.
        key: What the numbers are; the moments are kept beside them.
        names: Their tasks.
        value: The numbers, shape (m,).
        gradient: Of what is minimised.
        lr: The learning rate.
        weight_decay: Added to the gradient, times the value, as in ``torch.optim.Adam``.

    Returns:
        The new numbers.

    Example:
        >>> adam_step(Memory(), "s", ("a",), torch.zeros(1), torch.ones(1), lr=0.1)
        tensor([-0.1000])
    """
    nothing = value.new_zeros(len(value), 3)
    count, first, second = memory.recall(f"{key}/adam", names, nothing).unbind(1)
    gradient = gradient + weight_decay * value if weight_decay else gradient
    count = count + 1
    first = first.lerp(gradient, 1 - _BETAS[0])
    second = second.lerp(gradient.square(), 1 - _BETAS[1])
    scale = (second / (1 - _BETAS[1] ** count)).sqrt() + _EPS
    value = value - lr * first / (1 - _BETAS[0] ** count) / scale
    memory.keep(key, names, value)
    memory.keep(f"{key}/adam", names, torch.stack([count, first, second], dim=1))
    return value


class LearnedBalancer(Stateful, Balancer):
    """Learns a number :math:`s` per task, from zero, by an Adam of its own."""

    def __init__(self, lr: float = 1e-3) -> None:
        super().__init__()
        self.lr = positive("lr", lr)

    @abstractmethod
    def learn(self, s: Tensor, losses: Tensor) -> tuple[Tensor, Tensor]:
        """The weights of the losses, and the gradient of the objective with respect to ``s``."""

    @override
    def balance(self, losses: Tensor, step: Step) -> Tensor:
        memory = self.memory(step)
        s = memory.recall("s", step.names, torch.zeros_like(losses))
        weights, gradient = self.learn(s, losses)
        adam_step(memory, "s", step.names, s, gradient, lr=self.lr)
        return weights


@register
class UW(LearnedBalancer):
    r"""Uncertainty weighting with learned log-variances :math:`s`.

    .. math::
        \min_{\theta, s} \sum_{i=1}^{m} \tfrac12 \bigl(e^{-s_i} \ell_i(\theta) + s_i\bigr), \qquad
        w_i = \tfrac12 e^{-s_i}

    The log-variances :math:`s` start at 0. A separate Adam learns them; its state is part of the
    state dict, and the optimizer of the module is not involved. The weights are those before the
    Adam step, as if one optimizer updated both at once.

    Args:
        lr: Learning rate of that Adam; positive.

    Raises:
        ArgumentError: If the learning rate is not positive and finite.

    Example:
        >>> import torch
        >>> balancer = UW(lr=0.1)
        >>> for _ in range(500):
        ...     weights = balancer.weights(torch.tensor([0.5, 2.0]))
        >>> weights  # 1 / (2 loss), the minimum over s
        tensor([1.0000, 0.2500])

    References:
        Kendall, Gal and Cipolla, *Multi-Task Learning Using Uncertainty to Weigh Losses for Scene
        Geometry and Semantics*, CVPR 2018.
    """

    @override
    def learn(self, s: Tensor, losses: Tensor) -> tuple[Tensor, Tensor]:
        weights = 0.5 * (-s).exp()
        return weights, 0.5 - weights * losses


@register
class IMTLL(LearnedBalancer):
    r"""Impartial multi-task learning, loss part: learned scales that make all losses equal.

    .. math::
        \min_{\theta, s} \sum_{i=1}^{m} \bigl(e^{s_i} \ell_i(\theta) - s_i\bigr), \qquad
        w_i = e^{s_i}

    At the minimum over :math:`s` every scaled loss :math:`w_i \ell_i` is one. The scales :math:`s`
    start at 0. A separate Adam learns them; its state is part of the state dict. The weights are
    twice those of :class:`~lightning_jd.aggregators.UW`.

    Args:
        lr: Learning rate of that Adam; positive.

    Raises:
        ArgumentError: If the learning rate is not positive and finite.

    Example:
        >>> import torch
        >>> balancer = IMTLL(lr=0.1)
        >>> for _ in range(500):
        ...     weights = balancer.weights(torch.tensor([0.5, 2.0]))
        >>> weights
        tensor([2.0000, 0.5000])

    References:
        Liu et al., *Towards Impartial Multi-task Learning*, ICLR 2021.
    """

    @override
    def learn(self, s: Tensor, losses: Tensor) -> tuple[Tensor, Tensor]:
        weights = s.exp()
        return weights, weights * losses - 1
