"""Equal: plain training, as a balancer."""

from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._balancer import Balancer
from lightning_jd.aggregators._registry import register
from lightning_jd.aggregators._step import Step


@register
class Equal(Balancer):
    r"""The mean of the losses: :math:`w_i = 1/m`.

    The update equals that of :class:`~lightning_jd.aggregators.Mean`, at the cost of plain
    training.

    Example:
        >>> import torch
        >>> Equal().weights(torch.tensor([1.0, 4.0]))
        tensor([0.5000, 0.5000])
    """

    @override
    def balance(self, losses: Tensor, step: Step) -> Tensor:
        return losses.new_full((len(losses),), 1 / len(losses))
