"""PCGrad: remove from each row its conflicts with the others, one after the other."""

from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._base import GramianAggregator, Property, check_gramian
from lightning_jd.aggregators._precision import in_float64
from lightning_jd.aggregators._random import OwnGenerator, random_orders
from lightning_jd.aggregators._registry import register


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

    properties: ClassVar[frozenset[Property]] = frozenset(
        {Property.LINEAR_UNDER_SCALING, Property.WEIGHTED}
    )

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
