"""DWA: more weight for losses that fall slowly."""

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import positive
from lightning_jd.aggregators._balancer import Balancer
from lightning_jd.aggregators._memory import Memory, Stateful
from lightning_jd.aggregators._registry import register
from lightning_jd.aggregators._step import Step


@register
class DWA(Stateful, Balancer):
    r"""Dynamic Weight Average, from the mean losses of the last two epochs.

    .. math::
        w_i = m \operatorname{softmax}(r / T)_i, \qquad
        r_i = \frac{\bar\ell_i^{(t-1)}}{\bar\ell_i^{(t-2)}}

    with :math:`\bar\ell_i^{(t)}` the mean of loss i over epoch t. In the first two epochs, and for
    a task that was absent in one of the last two, :math:`r_i = 1`. So all weights start at 1.

    The callback signals the end of an epoch. In your own loop, call :meth:`end_epoch`.

    Args:
        temperature: :math:`T`, positive; large values give nearly equal weights.

    Raises:
        ArgumentError: If the temperature is not positive and finite.

    Example:
        >>> balancer = DWA()
        >>> for epoch in ([4.0, 1.0], [1.0, 1.0]):  # one batch each
        ...     _ = balancer.weights(torch.tensor(epoch))
        ...     balancer.end_epoch()
        >>> balancer.weights(torch.tensor([1.0, 1.0]))
        tensor([0.8147, 1.1853])

    References:
        Liu et al., *End-to-End Multi-Task Learning with Attention*, CVPR 2019.
    """

    def __init__(self, temperature: float = 2.0) -> None:
        super().__init__()
        self.temperature = positive("temperature", temperature)

    @override
    def balance(self, losses: Tensor, step: Step) -> Tensor:
        memory, names = self.memory(step), step.names
        nothing = torch.zeros_like(losses)
        memory.keep("sum", names, memory.recall("sum", names, nothing) + losses)
        memory.keep("count", names, memory.recall("count", names, nothing) + 1)
        unknown = torch.full_like(losses, torch.nan)
        last, before = (memory.recall(key, names, unknown) for key in ("last", "before"))
        rates = (last / before).nan_to_num(nan=1.0, posinf=1.0, neginf=1.0)
        return len(losses) * (rates / self.temperature).softmax(dim=0)

    @override
    def end_epoch(self) -> None:
        """Close an epoch: average the losses since the last call."""
        for memory in self._memories.values():
            _turn(memory)


def _turn(memory: Memory) -> None:
    names = memory.names("sum")
    unknown = torch.full((len(names),), torch.nan, dtype=torch.float64)
    count = memory.recall("count", names, unknown)
    mean = memory.recall("sum", names, unknown) / count  # NaN for those absent from this epoch
    memory.keep("before", names, memory.recall("last", names, unknown))
    memory.keep("last", names, mean)
    memory.keep("sum", names, torch.zeros_like(mean))
    memory.keep("count", names, torch.zeros_like(mean))
