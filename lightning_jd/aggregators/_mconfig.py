"""M-ConFIG: ConFIG of the momenta of all tasks, of which a step may know only some gradients."""

from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import positive, share
from lightning_jd.aggregators._base import Property
from lightning_jd.aggregators._config import config_weights
from lightning_jd.aggregators._memory import Memory, StatefulAggregator
from lightning_jd.aggregators._precision import in_float64, relative_tolerance
from lightning_jd.aggregators._registry import register
from lightning_jd.aggregators._step import Step

_WHOLE = ("",)  # the name under which something is kept that belongs to no task


@register
class MConFIG(StatefulAggregator):
    r"""ConFIG on momenta, with the scaling of Adam.

    Each task has a momentum :math:`m_i \leftarrow \beta_1 m_i + (1 - \beta_1) g_i`, with bias
    correction :math:`\hat m_i`. Their direction
    :math:`c_t = \text{ConFIG}(\hat m_1, \hat m_2, \dots)` replaces the corrected first moment of
    Adam. The corresponding gradient is

    .. math::
        \tilde g_t = \frac{(1 - \beta_1^t)\, c_t - \beta_1 (1 - \beta_1^{t-1})\, c_{t-1}}{1-\beta_1}

    which gives the second moment :math:`s \leftarrow \beta_2 s + (1 - \beta_2) \tilde g_t^2`. The
    update is :math:`c_t / (\sqrt{s / (1 - \beta_2^t)} + \epsilon)`: train with plain SGD.

    The paper differentiates one loss per step, in turn. To do so, return one loss per step (a dict
    with one name); the momenta of the other tasks stay in use. A task has no momentum before its
    first step. (The original code makes no update until every task has one.)

    It requires the Jacobian and stores one momentum per task, (m, n) numbers.

    Args:
        beta1: Decay of the momenta, at least 0 and less than 1.
        beta2: Decay of the second moment, at least 0 and less than 1.
        eps: Added to the denominator, positive.

    Raises:
        ArgumentError: If an argument is out of its range.

    Example:
        >>> MConFIG()(torch.tensor([[3.0, 0.0], [0.0, 1.0]]))
        tensor([1., 1.])

    References:
        Liu, Chu and Thuerey, *ConFIG: Towards Conflict-free Training of Physics Informed Neural
        Networks*, ICLR 2025, arXiv:2408.11104.
    """

    properties: ClassVar[frozenset[Property]] = frozenset({Property.PERMUTATION_INVARIANT})

    def __init__(self, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> None:
        super().__init__()
        self.beta1 = share("beta1", beta1, below_one=True)
        self.beta2 = share("beta2", beta2, below_one=True)
        self.eps = positive("eps", eps)

    @override
    def combine(self, jacobian: Tensor, step: Step) -> Tensor:
        memory, names = self.memory(step), step.names
        J = jacobian.float() if jacobian.dtype.itemsize < 4 else jacobian
        first = memory.recall("momentum", names, torch.zeros_like(J))
        memory.keep("momentum", names, self.beta1 * first + (1 - self.beta1) * J)
        count = memory.recall("count", names, J.new_zeros(len(J)))
        memory.keep("count", names, count + 1)
        everyone = memory.names("momentum")
        counts = memory.recall("count", everyone, J.new_zeros(len(everyone)))
        M = memory.recall("momentum", everyone, J.new_zeros(len(everyone), J.shape[1]))
        c = self._direction(M / (1 - self.beta1**counts)[:, None])
        return self._scaled(c, memory).to(jacobian)

    def _direction(self, M: Tensor) -> Tensor:
        G = in_float64(M @ M.T)
        p = torch.ones(len(M), dtype=G.dtype, device=G.device)
        return config_weights(G, p, relative_tolerance(len(M), M.dtype)).to(M) @ M

    def _scaled(self, c: Tensor, memory: Memory) -> Tensor:
        t = memory.steps
        zero = torch.zeros_like(c)[None]
        before = memory.recall("direction", _WHOLE, zero)[0]  # times 1 - beta1 ** (t - 1)
        now = (1 - self.beta1**t) * c
        gradient = (now - self.beta1 * before) / (1 - self.beta1)
        second = memory.recall("second", _WHOLE, zero)[0]
        second = self.beta2 * second + (1 - self.beta2) * gradient.square()
        memory.keep("direction", _WHOLE, now[None])
        memory.keep("second", _WHOLE, second[None])
        return c / ((second / (1 - self.beta2**t)).sqrt() + self.eps)
