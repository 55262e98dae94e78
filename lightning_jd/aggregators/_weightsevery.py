"""WeightsEvery: the weights of another method, computed in every n-th step only."""

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import checked_integer
from lightning_jd.aggregators._balancer import Balancer
from lightning_jd.aggregators._base import GramianAggregator, Method
from lightning_jd.aggregators._memory import StatefulGramianAggregator
from lightning_jd.aggregators._precision import in_float64
from lightning_jd.aggregators._registry import register
from lightning_jd.aggregators._step import Step
from lightning_jd.aggregators._wrapper import Wrapped, Wrapper
from lightning_jd.errors import ArgumentError


@register
class WeightsEvery(Wrapper, StatefulGramianAggregator):
    r"""Computes the weights of another aggregator every n-th step and reuses them in between.

    .. math::
        \mathcal A(J_t) = J_t^\top w_{\lfloor t / n \rfloor n}, \qquad w_t = w(J_t J_t^\top)

    In the other steps the weights are known before the backward pass, so no Jacobian is computed
    and the step costs one ordinary backward pass. Weights are stored by task name. A task that
    appears in such a step gets the mean weight of the others. The guarantees of the wrapped
    aggregator do not hold in these steps, so the only claimed property is that the update is a
    weighted sum of the rows.

    Parameter groups are refused, because each would require a backward pass of its own.

    Args:
        aggregator: The wrapped aggregator, which must compute weights: a name, a dict with a name
            and arguments, or an object.
        n: The number of steps between two computations of the weights; at least 1.

    Raises:
        ArgumentError: If the wrapped aggregator does not compute weights or requires two samples,
            or if n is less than 1.

    Example:
        >>> WeightsEvery("upgrad", n=8).n
        8

    References:
        Navon et al., *Multi-Task Learning as a Bargaining Game*, ICML 2022, which does this for
        Nash-MTL.
    """

    uses_values = True
    _one_sample = True

    def __init__(
        self,
        aggregator: Wrapped = "upgrad",
        n: int = 10,
    ) -> None:
        super().__init__(aggregator)
        self.n = checked_integer("n", n, least=1)
        self._turns = 0

    @override
    def turn(self) -> Method:
        """A method that computes the weights, or one that reuses them."""
        self._turns += 1
        return _Computed(self) if (self._turns - 1) % self.n == 0 else _Known(self)

    @override
    def weigh(self, gramian: Tensor, step: Step) -> Tensor:
        if step.group is not None:
            raise ArgumentError(
                f"WeightsEvery cannot be combined with parameter groups, got group {step.group!r}: "
                "each group would require a backward pass of its own."
            )
        memory = self.memory(step)
        weights = self.aggregator.weigh(gramian, step)
        memory.keep("weight", step.names, in_float64(weights))
        return weights

    def kept(self, step: Step) -> Tensor:
        """The weights to reuse, shape (m,)."""
        memory = self.memory(step)
        unknown = torch.full((len(step.names),), torch.nan, dtype=torch.float64)
        weights = memory.recall("weight", step.names, unknown)
        known = weights.isfinite()
        if not bool(known.any()):  # only tasks that were never there
            return torch.full_like(unknown, 1 / len(unknown))
        return torch.where(known, weights, weights[known].mean())

    @override
    def reset(self) -> None:
        """Reset the state, including that of the wrapped aggregator."""
        super().reset()
        self._turns = 0

    @override
    def get_extra_state(self) -> dict[str, Any]:
        """The stored weights and the number of steps."""
        return {**super().get_extra_state(), "turns": self._turns}

    @override
    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the state."""
        super().set_extra_state(state)
        self._turns = state["turns"]


class _Computed(GramianAggregator):
    """What answers in a step that computes weights, however often it is asked to take its turn."""

    uses_values = True

    def __init__(self, owner: WeightsEvery) -> None:
        super().__init__()
        self._owner = (owner,)  # not as a submodule
        self.ask_like(owner)

    @property
    @override
    def label(self) -> str:
        """That of its owner."""
        return self._owner[0].label

    @override
    def weigh(self, gramian: Tensor, step: Step) -> Tensor:
        return self._owner[0].weigh(gramian, step)

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        return self._owner[0].weights(gramian)


class _Known(Balancer):
    """What answers in a step between."""

    def __init__(self, owner: WeightsEvery) -> None:
        super().__init__()
        self._owner = (owner,)  # not as a submodule

    @property
    @override
    def label(self) -> str:
        """That of its owner."""
        return self._owner[0].label

    @override
    def balance(self, losses: Tensor, step: Step) -> Tensor:
        return self._owner[0].kept(step).to(losses)
