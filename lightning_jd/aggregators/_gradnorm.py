"""GradNorm: learned weights that give all tasks gradients of comparable length."""

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import not_negative, positive
from lightning_jd.aggregators._base import Property, check_gramian
from lightning_jd.aggregators._learned import adam_step
from lightning_jd.aggregators._memory import StatefulGramianAggregator
from lightning_jd.aggregators._precision import in_float64
from lightning_jd.aggregators._registry import register
from lightning_jd.aggregators._step import Step


@register
class GradNorm(StatefulGramianAggregator):
    r"""Learned weights that give slower tasks longer gradients.

    With :math:`n_i = w_i \lVert g_i \rVert`, their mean :math:`\bar n`, and :math:`r_i` the loss of
    task i relative to its first one, divided by the mean of these ratios, the weights descend along
    the gradient of

    .. math:: \sum_{i=1}^{m} \bigl| n_i - \bar n\, r_i^{\alpha} \bigr|,

    where :math:`\bar n\, r_i^\alpha` is treated as constant. A step uses the weights before their
    update; they start at 1.

    Three details differ from the paper. The weights are :math:`m \operatorname{softmax}(s)`, as in
    LibMTL, which keeps them positive with sum m (the paper normalises after each step). A separate
    Adam learns :math:`s`; its state is part of the state dict. The norms cover all aggregated
    parameters (the paper uses the last shared layer: set ``params`` to it). Losses must not be
    negative.

    Called with a Jacobian or Gramian only, it takes all losses to be 1.

    Args:
        alpha: Strength of the pull toward a common training rate; not negative.
        lr: Learning rate of that Adam; positive.

    Raises:
        ArgumentError: If an argument is out of its range.

    Example:
        >>> balanced = GradNorm(lr=0.05)
        >>> for _ in range(500):
        ...     weights = balanced.weights(torch.diag(torch.tensor([1.0, 9.0])))
        >>> weights.round(decimals=1)  # lengths 1 and 3: 1.5 * 1 = 0.5 * 3
        tensor([1.5000, 0.5000])

    References:
        Chen et al., *GradNorm: Gradient Normalization for Adaptive Loss Balancing in Deep Multitask
        Networks*, ICML 2018.
    """

    uses_values: bool = True
    properties = frozenset({Property.WEIGHTED, Property.PERMUTATION_INVARIANT})

    def __init__(self, alpha: float = 1.5, lr: float = 0.025) -> None:
        super().__init__()
        self.alpha = not_negative("alpha", alpha)
        self.lr = positive("lr", lr)

    @override
    def weigh(self, gramian: Tensor, step: Step) -> Tensor:
        check_gramian(gramian)
        G, m, names = in_float64(gramian), len(gramian), step.names
        memory, losses = self.memory(step), step.losses_or_ones(G)
        s = memory.recall("s", names, G.new_zeros(m))
        shares = s.softmax(dim=0)
        lengths = m * shares * G.diagonal().clamp(min=0).sqrt()
        first = memory.recall("first", names, losses)
        memory.keep("first", names, first)
        ratios = torch.where(first > 0, losses / first, 1.0)
        rates = torch.where(ratios.mean() > 0, ratios / ratios.mean(), 1.0)
        sides = (lengths - lengths.mean() * rates**self.alpha).sign()
        pull = sides * lengths  # the derivative of the sum by the logarithm of each weight
        gradient = pull - shares * pull.sum()
        adam_step(memory, "s", names, s, gradient, lr=self.lr)
        return (m * shares).to(gramian)
