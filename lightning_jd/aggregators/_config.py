"""ConFIG: the direction that has the same cosine with all rows."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import (
    PerObjective,
    checked_preference,
    preference_for,
)
from lightning_jd.aggregators._base import GramianAggregator, Property, check_gramian
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

    properties: ClassVar[frozenset[Property]] = frozenset(
        {Property.WEIGHTED, Property.PERMUTATION_INVARIANT}
    )
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
