"""Balancers that are the gradient of a function of the losses."""

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
from lightning_jd.aggregators._balancer import Balancer, check_positive
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


@register
class GLS(Balancer):
    r"""Geometric Loss Strategy: the geometric mean of the losses.

    .. math::
        S(\ell) = \Bigl(\prod_{i=1}^{m} \ell_i\Bigr)^{1/m}, \qquad w_i = \frac{S(\ell)}{m\, \ell_i}

    It has the direction of :class:`~lightning_jd.aggregators.LogLosses`, so rescaling a loss does
    not change the direction. Its length scales with the losses.

    Raises:
        ArgumentError: When called, if a loss is not positive.

    Example:
        >>> import torch
        >>> GLS().weights(torch.tensor([1.0, 4.0]))
        tensor([1.0000, 0.2500])

    References:
        Chennupati et al., *MultiNet++: Multi-Stream Feature Aggregation and Geometric Loss Strategy
        for Multi-Task Learning*, CVPR Workshops 2019.
    """

    keeps_small_tasks = True

    @override
    def balance(self, losses: Tensor, step: Step) -> Tensor:
        check_positive("GLS", losses, step)
        logs = losses.log()
        return (logs.mean() - logs).exp() / len(losses)


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
