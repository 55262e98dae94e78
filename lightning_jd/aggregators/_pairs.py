"""PCGrad and GradVac: each row meets the others in random order."""

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import share
from lightning_jd.aggregators._base import GramianAggregator, Property, check_gramian
from lightning_jd.aggregators._memory import StatefulGramianAggregator
from lightning_jd.aggregators._precision import in_float64
from lightning_jd.aggregators._random import OwnGenerator, random_orders
from lightning_jd.aggregators._registry import register
from lightning_jd.aggregators._step import Step


@register
class PCGrad(OwnGenerator, GramianAggregator):
    r"""The sum of the rows, each projected off the rows it conflicts with, in random order.

    Row :math:`g_i` visits the other rows in a random order :math:`j_1, \dots, j_{m-1}` and becomes

    .. math::
        g_i \leftarrow g_i - \frac{\min(0,\, g_i^\top g_{j_k})}{\lVert g_{j_k} \rVert^2}\, g_{j_k},
        \qquad k = 1, \dots, m - 1;

    the results are added. A projection changes one coefficient of row :math:`i`, so the Gramian
    suffices. For two rows there is one order, and the result is twice that of UPGrad. A given draw
    of orders is not permutation invariant; the distribution is. The cost is :math:`O(m^3)`
    operations, in m - 1 steps for all rows at once.

    Args:
        seed: Seed of the random generator, whose state is part of the state dict.

    Example:
        >>> import torch
        >>> PCGrad()(torch.tensor([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]))
        tensor([0.5848, 3.8012, 3.8012])

    References:
        Yu et al., *Gradient Surgery for Multi-Task Learning*, NeurIPS 2020.
    """

    properties = frozenset({Property.LINEAR_UNDER_SCALING, Property.WEIGHTED})

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        check_gramian(gramian)
        G = in_float64(gramian)
        m = len(G)
        rows = torch.arange(m, device=G.device)
        squared_norms = G.diagonal()
        coefficients = torch.eye(m, dtype=G.dtype, device=G.device)  # row i: projected g_i in J
        for others in self.draw_orders(m).to(G.device).unbind(dim=1):  # one other row for each row
            inner = (coefficients * G[others]).sum(dim=1)  # (m,)
            norms = squared_norms[others]
            conflict = (inner < 0) & (norms > 0)
            coefficients[rows, others] -= torch.where(conflict, inner / norms, 0.0)
        return coefficients.sum(dim=0).to(gramian)

    def draw_orders(self, m: int) -> Tensor:
        """The next random orders: row i has all indices but i, shape ``(m, m - 1)``."""
        return random_orders(m, self.generator)


_MOST_ALIKE = 1 - 1e-6  # rows cannot be turned onto one another with finite weights


@register
class GradVac(StatefulGramianAggregator, OwnGenerator):
    r"""Gradient Vaccine: the sum of the rows, each rotated until its cosines reach their targets.

    Row :math:`g_i` visits the others in random order. With :math:`\phi` the cosine between the
    current :math:`g_i` and :math:`g_j`, and :math:`\hat\phi_{ij}` the target, if
    :math:`\phi < \hat\phi_{ij}`

    .. math::
        g_i \leftarrow g_i + \frac{\lVert g_i \rVert
        \bigl(\hat\phi_{ij} \sqrt{1 - \phi^2} - \phi \sqrt{1 - \hat\phi_{ij}^2}\bigr)}
        {\lVert g_j \rVert \sqrt{1 - \hat\phi_{ij}^2}}\, g_j,

    after which the cosine is :math:`\hat\phi_{ij}`. Then
    :math:`\hat\phi_{ij} \leftarrow (1 - \beta) \hat\phi_{ij} + \beta \phi`. The results are added.

    Targets start at 0, so the first step equals that of :class:`~lightning_jd.aggregators.PCGrad`.
    They are stored by the names of the pair. Zero rows are skipped.

    Args:
        beta: Weight of the newest cosine in the moving average of the targets, in [0, 1].
        seed: Seed of the random generator, whose state is part of the state dict.

    Raises:
        ArgumentError: If ``beta`` is not in [0, 1].

    Example:
        >>> GradVac()(torch.tensor([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]))
        tensor([0.5848, 3.8012, 3.8012])

    References:
        Wang et al., *Gradient Vaccine: Investigating and Improving Multi-task Optimization in
        Massively Multilingual Models*, ICLR 2021.
    """

    properties = frozenset({Property.LINEAR_UNDER_SCALING, Property.WEIGHTED})

    def __init__(self, beta: float = 0.5, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed
        self.generator.manual_seed(seed)
        self.beta = share("beta", beta)

    @override
    def weigh(self, gramian: Tensor, step: Step) -> Tensor:
        check_gramian(gramian)
        G, m = in_float64(gramian), len(gramian)
        memory, rows = self.memory(step), torch.arange(m, device=G.device)
        pairs = [f"{one}\n{other}" for one in step.names for other in step.names]
        targets = memory.recall("cosine", pairs, G.new_zeros(m * m)).view(m, m).clone()
        norms = G.diagonal().clamp(min=0).sqrt()
        C = torch.eye(m, dtype=G.dtype, device=G.device)  # row i: the turned g_i in rows of J
        for others in random_orders(m, self.generator).to(G.device).unbind(dim=1):
            own = ((C @ G) * C).sum(dim=1).clamp(min=0).sqrt()  # the norm of the turned g_i
            there = norms[others]
            known = (own > 0) & (there > 0)
            inner = (C * G[others]).sum(dim=1)
            cosine = torch.where(known, inner / (own * there), 0.0).clamp(-1, 1)
            target = targets[rows, others]
            reach = target.clamp(-_MOST_ALIKE, _MOST_ALIKE)
            squared_sine = 1 - cosine**2  # of opposite rows, nothing but rounding
            sine = torch.where(squared_sine > 1e-14, squared_sine, 0.0).sqrt()
            sine_reach = (1 - reach**2).sqrt()
            turn = own * (reach * sine - cosine * sine_reach) / (there * sine_reach)
            C[rows, others] += torch.where(known & (cosine < reach), turn, 0.0)
            learned = (1 - self.beta) * target + self.beta * cosine
            targets[rows, others] = torch.where(known, learned, target)
        memory.keep("cosine", pairs, targets.flatten())
        return C.sum(dim=0).to(gramian)
