"""Balancers from what the losses were before: SoftAdapt and ReLoBRaLo."""

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import positive, share
from lightning_jd.aggregators._balancer import Balancer
from lightning_jd.aggregators._memory import Stateful
from lightning_jd.aggregators._random import OwnGenerator
from lightning_jd.aggregators._registry import register
from lightning_jd.aggregators._step import Step


@register
class SoftAdapt(Stateful, Balancer):
    r"""More weight for losses that fall more slowly: a softmax of their changes.

    .. math::
        w = \operatorname{softmax}(\beta s), \qquad
        s_i = \ell_i^{(t)} - \ell_i^{(t - 1)}

    The first change of a task is 0. The change is that between two steps; in small batches it is
    mostly noise.

    Args:
        beta: :math:`\beta`, positive.
        normalized: Whether :math:`s` is divided by :math:`\sum_i |s_i|`, so that the units of the
            losses do not decide how different the weights are.

    Raises:
        ArgumentError: If :math:`\beta` is not positive and finite.

    Example:
        >>> balancer = SoftAdapt(beta=1.0)
        >>> balancer.weights(torch.tensor([2.0, 2.0]))
        tensor([0.5000, 0.5000])
        >>> balancer.weights(torch.tensor([1.0, 2.0]))
        tensor([0.2689, 0.7311])

    References:
        Heydari, Thompson and Mehmood, *SoftAdapt: Techniques for Adaptive Loss Weighting of Neural
        Networks with Multi-Part Loss Functions*, arXiv:1912.12355.
    """

    def __init__(self, beta: float = 0.1, normalized: bool = False) -> None:
        super().__init__()
        self.beta = positive("beta", beta)
        self.normalized = normalized

    @override
    def balance(self, losses: Tensor, step: Step) -> Tensor:
        memory = self.memory(step)
        changes = losses - memory.recall("last", step.names, losses)
        memory.keep("last", step.names, losses)
        if self.normalized:
            total = changes.abs().sum()
            changes = torch.where(total > 0, changes / total, 0.0)
        return (self.beta * changes).softmax(dim=0)


@register
class ReLoBRaLo(Stateful, OwnGenerator, Balancer):
    r"""Relative loss balancing with random lookback: more weight for losses that fell less.

    .. math::
        w^{(t)} = \alpha \bigl(\rho\, w^{(t-1)} + (1 - \rho)\, b(t, 0)\bigr)
        + (1 - \alpha)\, b(t, t - 1), \qquad
        b(t, t') = m \operatorname{softmax}\biggl(\frac{\ell^{(t)}}{T \ell^{(t')}}\biggr)

    where :math:`\rho` is 1 with the probability ``rho``, else 0, drawn once per step. The weights
    of a task start at 1, and its lookback is to its own first loss. If a loss was zero, its ratio
    counts as 1.

    Args:
        alpha: Decay factor :math:`\alpha` of the weights, from 0 to 1.
        rho: The probability of no lookback, from 0 to 1.
        temperature: :math:`T`, positive; large values give nearly equal weights.
        seed: Seed of the random generator, whose state is part of the state dict.

    Raises:
        ArgumentError: If an argument is out of its range.

    Example:
        >>> balancer = ReLoBRaLo(alpha=0.5, temperature=1.0)
        >>> balancer.weights(torch.tensor([2.0, 2.0]))
        tensor([1., 1.])
        >>> balancer.weights(torch.tensor([1.0, 2.0]))
        tensor([0.8775, 1.1225])

    References:
        Bischof and Kraus, *Multi-Objective Loss Balancing for Physics-Informed Deep Learning*,
        arXiv:2110.09813.
    """

    def __init__(
        self, alpha: float = 0.999, rho: float = 0.999, temperature: float = 0.1, seed: int = 0
    ) -> None:
        super().__init__()
        self.alpha = share("alpha", alpha)
        self.rho = share("rho", rho)
        self.temperature = positive("temperature", temperature)
        self.seed = seed
        self.generator.manual_seed(seed)

    @override
    def balance(self, losses: Tensor, step: Step) -> Tensor:
        memory, names = self.memory(step), step.names
        first, last = (memory.recall(key, names, losses) for key in ("first", "last"))
        weights = memory.recall("weight", names, torch.ones_like(losses))
        if float(torch.rand((), generator=self.generator)) >= self.rho:
            weights = self._relative(losses, first)
        weights = self.alpha * weights + (1 - self.alpha) * self._relative(losses, last)
        memory.keep("first", names, first)
        memory.keep("last", names, losses)
        memory.keep("weight", names, weights)
        return weights

    def _relative(self, losses: Tensor, before: Tensor) -> Tensor:
        ratios = torch.where(before != 0, losses / before, 1.0)
        return len(losses) * (ratios / self.temperature).softmax(dim=0)
