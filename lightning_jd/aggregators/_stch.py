"""STCH: a smooth maximum of the losses, with preferences."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import positive
from lightning_jd.aggregators._balancer import Balancer
from lightning_jd.aggregators._registry import register
from lightning_jd.aggregators._step import Step
from lightning_jd.errors import ArgumentError, ShapeError

#: One number per objective, in their order or by name.
PerObjective = Sequence[float] | Mapping[str, float]


@register
class STCH(Balancer):
    r"""Smooth Tchebycheff scalarisation.

    .. math::
        S(\ell) = \mu \log \sum_{i=1}^{m} \exp \frac{\lambda_i (\ell_i - z_i)}{\mu}, \qquad
        w_i = \lambda_i \operatorname{softmax}\Bigl(\frac{\lambda \odot (\ell - z)}{\mu}\Bigr)_i

    As :math:`\mu \to 0` only the loss that is the largest after weighting counts.

    This is the definition. The variant in LibMTL first trains on the sum of logarithms for a few
    epochs, then divides losses by their mean there and takes logarithms; none of that is done here.

    Args:
        mu: The smoothing :math:`\mu`, positive.
        preference: :math:`\lambda`, positive, in the order of the objectives or by name; ``None``
            is 1/m each.
        reference: The ideal point :math:`z`, in the same way; ``None`` is zero.

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
        self.preference = _kept("preference", preference, least=0.0)
        self.reference = _kept("reference", reference, least=-math.inf)

    @override
    def balance(self, losses: Tensor, step: Step) -> Tensor:
        m = len(losses)
        preference = _of_step("preference", self.preference, losses, step, 1 / m)
        reference = _of_step("reference", self.reference, losses, step, 0.0)
        return preference * (preference * (losses - reference) / self.mu).softmax(dim=0)


def _kept(
    name: str, entries: PerObjective | None, least: float
) -> tuple[float, ...] | dict[str, float] | None:
    if entries is None:
        return None
    numbers = list(entries.values() if isinstance(entries, Mapping) else entries)
    if not numbers or not all(least < number < math.inf for number in numbers):
        must = "positive" if least == 0 else "finite"
        raise ArgumentError(
            f"`{name}` must be {must} numbers, one per objective, got {numbers}. "
            "Leave an objective out of the losses to ignore it."
        )
    if isinstance(entries, Mapping):
        return {str(task): float(number) for task, number in entries.items()}
    return tuple(map(float, numbers))


def _of_step(
    name: str,
    entries: tuple[float, ...] | dict[str, float] | None,
    losses: Tensor,
    step: Step,
    default: float,
) -> Tensor:
    if entries is None:
        return torch.full_like(losses, default)
    if isinstance(entries, dict):
        if missing := [task for task in step.names if task not in entries]:
            raise ArgumentError(
                f"`{name}` must have an entry for every objective, got none for "
                f"{', '.join(map(repr, missing[:10]))}. Known: {', '.join(map(repr, entries))}."
            )
        return losses.new_tensor([entries[task] for task in step.names])
    if len(entries) != len(losses):
        raise ShapeError(
            f"`{name}` must have one entry per objective ({len(losses)}), got {len(entries)}. "
            "Give a dict by name where tasks come and go."
        )
    return losses.new_tensor(entries)
