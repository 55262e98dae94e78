"""FromFeatures: the weights of another method, from the gradients where tasks part."""

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._registry import register
from lightning_jd.aggregators._step import Step
from lightning_jd.aggregators._wrapper import Wrapped, Wrapper
from lightning_jd.errors import GraphError


@register
class FromFeatures(Wrapper):
    r"""Weights of another aggregator, computed from the gradients at the shared features.

    .. math::
        \mathcal A(J) = J^\top w(J_z J_z^\top), \qquad J_z = \partial \ell / \partial z

    The features :math:`z` are the activations where the tasks branch, found in the autograd graph.
    Their gradients require a backward pass through each head only; one ordinary backward pass of
    the weighted losses then gives the update of all parameters. So k tasks cost little more than
    one. The guarantees of the wrapped aggregator hold for the gradients at the features, not for
    those at the parameters, so the only claimed property is that the update is a weighted sum of
    the rows.

    This applies in training only: called with a Jacobian or Gramian, it equals the wrapped
    aggregator.

    Args:
        aggregator: The wrapped aggregator, which must compute weights: a name, a dict with a name
            and arguments, or an object.
        features: ``None`` for the activations where the tasks branch; the name (or a name pattern)
            of a module, for its output; or, in your own loop, an activation of this step.

    Raises:
        ArgumentError: If the wrapped aggregator does not compute weights, or requires two samples.

    Example:
        >>> FromFeatures("mgda").aggregator
        MGDA()

    References:
        Sener and Koltun, *Multi-Task Learning as Multi-Objective Optimization*, NeurIPS 2018, which
        proposes this for MGDA.
    """

    at_features = True
    _one_sample = True

    def __init__(
        self,
        aggregator: Wrapped = "upgrad",
        features: str | Tensor | None = None,
    ) -> None:
        super().__init__(aggregator)
        self.at_features, self.features = True, features

    @override
    def weigh(self, gramian: Tensor, step: Step) -> Tensor:
        _check_overlap(gramian)
        return self.aggregator.weigh(gramian, step)

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        return self.aggregator.weights(gramian)

    @override
    def extra_repr(self) -> str:
        """The features; torch shows the wrapped aggregator below them."""
        if isinstance(self.features, Tensor):
            return f"features={tuple(self.features.shape)}"
        return "" if self.features is None else f"features={self.features!r}"


def _check_overlap(gramian: Tensor) -> None:
    """Raise if no two tasks have to do with each other at the features.

    Then tasks part in the last operation, as the columns of one output do.
    """
    apart = gramian - torch.diag(gramian.diagonal())
    if len(gramian) > 1 and not bool(apart.any()) and bool((gramian.diagonal() > 0).all()):
        raise GraphError(
            "Weights from features require activations that several tasks depend on, but here the "
            "tasks branch only at their losses: no two gradients have a common non-zero entry (as "
            "for columns of one output). Give each task its own head, name an earlier module, or "
            "compute the weights from the parameters."
        )
