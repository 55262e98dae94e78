"""Balancers that are a function of the losses of one step: most are the gradient of one."""

import math

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import (
    Entries,
    PerObjective,
    checked_entries,
    checked_preference,
    entries_for,
    not_negative,
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
        above = _above(self.reference, losses, step)
        return preference * (preference * above / self.mu).softmax(dim=0)


@register
class PBI(Balancer):
    r"""Penalty-based boundary intersection: losses along a ray, and a penalty for leaving it.

    .. math::
        S(\ell) = d_1 + \theta d_2, \qquad d_1 = \hat p^\top (\ell - z), \quad
        d_2 = \lVert \ell - z - d_1 \hat p \rVert, \quad \hat p = \frac{p}{\lVert p \rVert}

    .. math:: w = \hat p + \theta\, \frac{\ell - z - d_1 \hat p}{d_2}

    The losses become proportional to :math:`p`. A loss that is too small for that has a negative
    weight if :math:`\theta` is large.

    Args:
        penalty: :math:`\theta`, not negative.
        preference: :math:`p`, positive, in the order of the objectives or by name; ``None`` is 1/m
            each.
        reference: The ideal point :math:`z`, in order or by name; ``None`` is zero.

    Raises:
        ArgumentError: If an argument is out of its range; when called, if a name has no entry.
        ShapeError: When called, if there is not one entry per objective.

    Example:
        >>> PBI(penalty=2.0).weights(torch.tensor([3.0, 1.0]))
        tensor([ 2.1213, -0.7071])

    References:
        Zhang and Li, *MOEA/D: A Multiobjective Evolutionary Algorithm Based on Decomposition*, IEEE
        Transactions on Evolutionary Computation 11, 2007.
    """

    def __init__(
        self,
        penalty: float = 5.0,
        preference: PerObjective | None = None,
        reference: PerObjective | None = None,
    ) -> None:
        super().__init__()
        self.penalty = not_negative("penalty", penalty)
        self.preference = checked_preference(preference)
        self.reference = checked_entries("reference", reference, least=-math.inf)

    @override
    def balance(self, losses: Tensor, step: Step) -> Tensor:
        preference = preference_for(self.preference, losses, step.names)
        along = preference / preference.norm()
        above = _above(self.reference, losses, step)
        across = above - (along @ above) * along
        distance = across.norm()
        # What rounding leaves of losses on the ray has no direction.
        on_ray = distance <= 1e-12 * above.norm()
        weights: Tensor = along + torch.where(on_ray, 0.0, self.penalty * across / distance)
        return weights


@register
class COSMOS(Balancer):
    r"""A weighted sum of the losses, minus their cosine with the preference.

    .. math::
        S(\ell) = p^\top \ell - \lambda \cos(p, \ell), \qquad
        w = p - \frac{\lambda}{\lVert \ell \rVert}
        \Bigl(\frac{p}{\lVert p \rVert} - \cos(p, \ell) \frac{\ell}{\lVert \ell \rVert}\Bigr)

    The penalty makes the losses proportional to :math:`p`. Because of it a weight can be negative.
    The paper also feeds :math:`p` to the network, which is left to the module.

    Args:
        penalty: :math:`\lambda`, not negative. The paper has 0.01 to 8, by the data.
        preference: :math:`p`, positive, in the order of the objectives or by name; ``None`` is 1/m
            each.

    Raises:
        ArgumentError: If an argument is out of its range; when called, if a name has no entry.
        ShapeError: When called, if there is not one entry per objective.

    Example:
        >>> COSMOS(penalty=1.0).weights(torch.tensor([2.0, 2.0]))
        tensor([0.5000, 0.5000])

    References:
        Ruchte and Grabocka, *Scalable Pareto Front Approximation for Deep Multi-Objective
        Learning*, ICDM 2021.
    """

    def __init__(self, penalty: float = 1.0, preference: PerObjective | None = None) -> None:
        super().__init__()
        self.penalty = not_negative("penalty", penalty)
        self.preference = checked_preference(preference)

    @override
    def balance(self, losses: Tensor, step: Step) -> Tensor:
        preference = preference_for(self.preference, losses, step.names)
        length = losses.norm()
        along, wanted = losses / length, preference / preference.norm()
        turn = (wanted - (wanted @ along) * along) / length
        return preference - torch.where(length > 0, self.penalty * turn, 0.0)


@register
class UWSO(Balancer):
    r"""Soft optimal uncertainty weighting: a softmax of the inverse losses.

    .. math:: w = \operatorname{softmax}\Bigl(\frac{1}{T \ell}\Bigr)

    The inverse losses are the weights at which the log-variances of
    :class:`~lightning_jd.aggregators.UW` are optimal; nothing is learned, and nothing lags behind.

    Args:
        temperature: :math:`T`, positive; large values give nearly equal weights. It depends on the
            units of the losses, so the paper tunes it.

    Raises:
        ArgumentError: If the temperature is not positive and finite; when called, if a loss is not
            positive.

    Example:
        >>> UWSO().weights(torch.tensor([0.5, 1.0]))
        tensor([0.7311, 0.2689])

    References:
        Kirchdorfer et al., *Analytical Uncertainty-Based Loss Weighting in Multi-Task Learning*,
        arXiv:2408.07985.
    """

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = positive("temperature", temperature)

    @override
    def balance(self, losses: Tensor, step: Step) -> Tensor:
        check_positive("UWSO", losses, step)
        return (1 / (self.temperature * losses)).softmax(dim=0)


def _above(reference: Entries | None, losses: Tensor, step: Step) -> Tensor:
    """The losses relative to the ideal point."""
    if reference is None:
        return losses
    return losses - entries_for("reference", reference, step.names, losses)
