"""LogLosses: the sum of the logarithms, which does not see the scale of a loss."""

from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._balancer import Balancer, check_positive
from lightning_jd.aggregators._registry import register
from lightning_jd.aggregators._step import Step


@register
class LogLosses(Balancer):
    r"""Scale-invariant balancing: the sum of the logarithms of the losses.

    .. math:: S(\ell) = \sum_i \log \ell_i, \qquad w_i = 1 / \ell_i

    Rescaling a loss by a positive constant does not change the update.

    Raises:
        ArgumentError: When called, if a loss is not positive.

    Example:
        >>> import torch
        >>> LogLosses().weights(torch.tensor([0.5, 4.0]))
        tensor([2.0000, 0.2500])

    References:
        Navon et al., *Multi-Task Learning as a Bargaining Game*, ICML 2022, where it is the
        "scale-invariant" baseline.
    """

    keeps_small_tasks = True

    @override
    def balance(self, losses: Tensor, step: Step) -> Tensor:
        check_positive("LogLosses", losses, step)
        return 1 / losses
