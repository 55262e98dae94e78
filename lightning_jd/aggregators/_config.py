"""ConFIG, the direction with the same cosine to all rows, and its variant on momenta."""

from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import (
    PerObjective,
    checked_preference,
    positive,
    preference_for,
    share,
)
from lightning_jd.aggregators._base import GramianAggregator, Property, check_gramian
from lightning_jd.aggregators._memory import Memory, StatefulAggregator
from lightning_jd.aggregators._precision import in_float64, relative_tolerance
from lightning_jd.aggregators._registry import register
from lightning_jd.aggregators._step import Step


@register
class ConFIG(GramianAggregator):
    r"""Conflict-free inverse gradients: the direction with the same cosine to all rows.

    .. math::
        \mathcal A(J) = \Bigl(\sum_{i=1}^{m} g_i^\top u\Bigr) u, \qquad
        u = \frac{U^+ p}{\lVert U^+ p \rVert},

    with :math:`U` the rows scaled to norm one and :math:`U^+` its pseudo-inverse. If the rows are
    linearly independent, the cosine between the update and row i is proportional to :math:`p_i`,
    and no row conflicts. Otherwise such cosines may not exist; the update then fits them in the
    least-squares sense, and rows may conflict. :math:`U^+ p = U^\top (U U^\top)^+ p`, so the
    Gramian suffices. Eigenvalues of :math:`U U^\top` of at most :math:`10 \sqrt m\, \varepsilon`
    times the largest count as zero, with :math:`\varepsilon` the machine precision of the Gramian's
    type.

    Args:
        preference: :math:`p`, one positive number per objective, in order or by name; ``None`` is
            equal preference.

    Raises:
        ArgumentError: If a preference is not positive.
        ShapeError: When called, if ``preference`` does not have one entry per objective.

    Example:
        >>> ConFIG()(torch.tensor([[3.0, 0.0], [0.0, 1.0]]))
        tensor([2., 2.])

    References:
        Liu, Chu and Thuerey, *ConFIG: Towards Conflict-free Training of Physics Informed Neural
        Networks*, ICLR 2025, arXiv:2408.11104.
    """

    properties = frozenset({Property.WEIGHTED, Property.PERMUTATION_INVARIANT})
    keeps_small_tasks = True

    def __init__(self, preference: PerObjective | None = None) -> None:
        super().__init__()
        self.preference = checked_preference(preference)

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        return self._weights(gramian, None)

    @override
    def weigh(self, gramian: Tensor, step: Step) -> Tensor:
        return self._weights(gramian, step.names)

    def _weights(self, gramian: Tensor, names: Sequence[str] | None) -> Tensor:
        check_gramian(gramian)
        G = in_float64(gramian)
        p = preference_for(self.preference, G, names)
        return config_weights(G, p, relative_tolerance(len(G), gramian.dtype)).to(gramian)


def config_weights(G: Tensor, p: Tensor, tolerance: float) -> Tensor:
    """The weights of ConFIG.

    Args:
        G: The Gramian, float64.
        p: What the cosines are to be proportional to.
        tolerance: The fraction of the largest eigenvalue that counts as zero.
    """
    norms = G.diagonal().clamp(min=0).sqrt()
    inverse = torch.where(norms > 0, 1 / norms, 0.0)
    eigenvalues, E = torch.linalg.eigh(inverse[:, None] * G * inverse)
    kept = eigenvalues > tolerance * eigenvalues[-1].clamp(min=0)
    inverted = torch.where(kept, 1 / eigenvalues, 0.0)
    c = E.T @ p
    squared_length = (inverted * c**2).sum()  # of the pseudo-inverse times p
    a = inverse * (E @ (inverted * c))
    weights: Tensor = torch.where(squared_length > 0, (G @ a).sum() / squared_length, 0.0) * a
    return weights


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

    properties = frozenset({Property.PERMUTATION_INVARIANT})

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
