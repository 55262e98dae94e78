"""GradDrop: per coordinate, keep either the positive or the negative entries."""

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._base import Aggregator, Property
from lightning_jd.aggregators._random import OwnGenerator
from lightning_jd.aggregators._registry import register
from lightning_jd.linalg import check_finite


@register
class GradDrop(OwnGenerator, Aggregator):
    r"""For each coordinate, the sum of the entries of one randomly chosen sign.

    With :math:`J^+_j` and :math:`J^-_j` the sums of the positive and of the negative entries of
    column :math:`j`, independently for each coordinate,

    .. math::
        \mathcal A(J)_j = \begin{cases}
            J^+_j & \text{with probability } P_j, \\ J^-_j & \text{otherwise,}
        \end{cases} \qquad
        P_j = \frac{J^+_j}{J^+_j - J^-_j}
            = \frac12 \left(1 + \frac{\sum_i J_{ij}}{\sum_i |J_{ij}|}\right) .

    The update is not a weighted sum of the rows, so it requires the Jacobian: ``(m, n)`` numbers,
    and one backward pass per task.

    Per call, the generator of the aggregator draws one seed, for a generator on the device of the
    Jacobian that draws n numbers. So nothing of size n is drawn on the host, and the state is the
    same small tensor on every device. Runs are reproducible on each device type, but a CPU and an
    accelerator draw different numbers.

    Args:
        seed: Seed of the random generator, whose state is part of the state dict.

    Example:
        >>> import torch
        >>> GradDrop()(torch.tensor([[1.0, -2.0, 0.0], [3.0, -1.0, 0.0]]))
        tensor([ 4., -3.,  0.])

    References:
        Chen et al., *Just Pick a Sign: Optimizing Deep Multitask Models with Gradient Sign
        Dropout*, NeurIPS 2020.
    """

    properties = frozenset({Property.PERMUTATION_INVARIANT})

    @override
    def aggregate(self, jacobian: Tensor) -> Tensor:
        check_finite("jacobian", jacobian)
        seed = int(torch.randint(2**63 - 1, (), generator=self.generator))
        on_device = torch.Generator(jacobian.device).manual_seed(seed)
        # Single precision also for half-precision gradients: 8 bits would bias the choice.
        uniform = torch.rand(
            jacobian.shape[1], dtype=torch.float32, generator=on_device, device=jacobian.device
        )
        positive = jacobian.clamp(min=0).sum(dim=0)
        negative = jacobian.clamp(max=0).sum(dim=0)
        # A column of zeros gives 0/0 = NaN, and the comparison false: the answer is 0 either way.
        return torch.where(uniform < positive / (positive - negative), positive, negative)
