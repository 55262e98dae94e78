"""The base of the methods that change the weights of another one."""

from collections.abc import Mapping
from typing import Any, ClassVar

from typing_extensions import override

from lightning_jd.aggregators._base import GramianAggregator, Method, Property
from lightning_jd.aggregators._registry import resolve
from lightning_jd.errors import ArgumentError

#: An aggregator that computes weights: a name, a dict with a name and arguments, or an object.
Wrapped = str | Mapping[str, Any] | GramianAggregator


class Wrapper(GramianAggregator):
    """Computes the weights of another aggregator in another way.

    Args:
        aggregator: The wrapped aggregator.

    Raises:
        ArgumentError: If it does not compute weights, or requires two samples and this does not
            know them.
    """

    properties = frozenset({Property.WEIGHTED})
    keeps_small_tasks: ClassVar[bool | None] = None
    _one_sample: ClassVar[bool] = False

    def __init__(self, aggregator: Wrapped = "upgrad") -> None:
        super().__init__()
        inner = weighted("`aggregator`", resolve(aggregator), one_sample=self._one_sample)
        self.aggregator, self.halves = inner, inner.halves
        self.uses_values = self.uses_values or inner.uses_values
        self.ask_like(inner)

    @override
    def reset(self) -> None:
        """Reset the state, including that of the wrapped aggregator."""
        super().reset()
        self.aggregator.reset()

    @override
    def end_epoch(self) -> None:
        """Forward the call to the wrapped aggregator."""
        self.aggregator.end_epoch()


def weighted(what: str, method: Method, *, one_sample: bool) -> GramianAggregator:
    """Return a method that computes weights, or raise."""
    if isinstance(method, GramianAggregator) and not (one_sample and method.halves):
        return method
    raise ArgumentError(
        f"{what} must compute weights{' from one sample' if one_sample else ''}, got "
        f"{method.label}. Choose for instance 'upgrad'."
    )
