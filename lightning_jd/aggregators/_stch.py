"""STCH: a smooth maximum of the losses, with preferences."""

import math

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import (
    PerObjective,
    checked_entries,
    checked_preference,
    entries_for,
    positive,
    preference_for,
)
from lightning_jd.aggregators._balancer import Balancer
from lightning_jd.aggregators._registry import register
from lightning_jd.aggregators._step import Step


@register
class STCH(Balancer):
    r"""Smooth Tchebycheff scalarisation: a smooth maximum of the losses.

    .. math::
        S(\ell) = \mu \log \sum_{i=1}^{m} \exp \frac{\lambda_i (\ell_i - z_i)}{\mu}, \qquad
        w_i = \lambda_i \operatorname{softmax}\Bigl(\frac{\lambda \odot (\ell - z)}{\mu}\Bigr)_i

    As :math:`\mu \to 0`, only the largest weighted loss counts.

    This is the definition of the paper. The variant in LibMTL, which first trains on the sum of
    logarithms and then normalises the losses by their means, is not implemented.

    Args:
        mu: The smoothing :math:`\mu`, positive.
        preference: :math:`\lambda`, positive, in the order of the objectives or by name; ``None``
            is 1/m each.
        reference: The ideal point :math:`z`, in order or by name; ``None`` is zero.

    Raises:
        ArgumentError: If an argument is out of its range; when called, if a name has no entry.
        ShapeError: When called, if there is not one entry per objective.

    Example:
        >>> STCH(mu=0.1).weights(torch.tensor([1.0, 1.0]))
        tensor([0.2500, 0.2500])
        >>> STCH(mu=0.1, preference={"0": 1.0, "1": 2.0}).weights(torch.tensor([1.0, 0.4]))
        tensor([0.8808, 0.2384])

    References:
        Lin et al., *Smooth Tchebycheff Scalarization for Multi-Objective Optimization*, ICML 2024,
        arXiv:2402.19078.
    """

    def __init__(
        self,
        mu: float = 1.0,
        preference: PerObjective | None = None,
        reference: PerObjective | None = None,
    ) -> None:
        super().__init__()
        self.mu = positive("mu", mu)
        self.preference = checked_preference(preference)
        self.reference = checked_entries("reference", reference, least=-math.inf)

    @override
    def balance(self, losses: Tensor, step: Step) -> Tensor:
        preference = preference_for(self.preference, losses, step.names)
        reference = torch.zeros_like(losses)
        if self.reference is not None:
            reference = entries_for("reference", self.reference, step.names, losses)
        return preference * (preference * (losses - reference) / self.mu).softmax(dim=0)
