"""The two arguments that make weights cheaper, for every method that has weights."""

from __future__ import annotations

from torch import Tensor

from lightning_jd.aggregators._base import Method
from lightning_jd.aggregators._fromfeatures import FromFeatures
from lightning_jd.aggregators._weightsevery import WeightsEvery
from lightning_jd.aggregators._wrapper import weighted


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
        method = FromFeatures(
            weighted("The aggregator of `weights_from`", method, one_sample=True), features
        )
    if weights_every != 1:
        inner = weighted("The aggregator of `weights_every`", method, one_sample=True)
        method = WeightsEvery(inner, weights_every)
    return method
