"""The two arguments that make weights cheaper, for every method that has weights."""

from __future__ import annotations

from torch import Tensor

from lightning_jd.aggregators._base import GramianAggregator, Method
from lightning_jd.aggregators._fromfeatures import FromFeatures
from lightning_jd.aggregators._weightsevery import WeightsEvery
from lightning_jd.errors import ArgumentError


def with_cheaper_weights(
    method: Method, weights_from: str | Tensor = "parameters", weights_every: int = 1
) -> Method:
    """Wrap a method so that its weights cost less: from features, or every n-th step only.

    Args:
        method: The method.
        weights_from: ``"parameters"`` for the method itself; ``"features"`` for the gradients at
            the activations where the tasks branch; or the features themselves: a module name, a
            name pattern, or an activation. See :class:`FromFeatures`.
        weights_every: The number of steps between two computations of the weights. See
            :class:`WeightsEvery`.

    Raises:
        ArgumentError: If the method does not compute weights from gradients.

    Example:
        >>> from lightning_jd.aggregators import resolve
        >>> with_cheaper_weights(resolve("mgda"), "encoder", weights_every=4)
        WeightsEvery(
          n=4
          (aggregator): FromFeatures(
            features='encoder'
            (aggregator): MGDA()
          )
        )
    """
    if isinstance(weights_from, Tensor) or weights_from != "parameters":
        is_found = isinstance(weights_from, str) and weights_from == "features"
        features = None if is_found else weights_from
        method = FromFeatures(_weighted("weights_from", method), features)
    if weights_every != 1:
        method = WeightsEvery(_weighted("weights_every", method), weights_every)
    return method


def _weighted(argument: str, method: Method) -> GramianAggregator:
    if isinstance(method, GramianAggregator) and not method.halves:
        return method
    raise ArgumentError(
        f"`{argument}` requires an aggregator that computes weights from one sample, got "
        f"{method.label}. Remove the argument, or choose for instance 'upgrad'."
    )
