"""FromFeatures: the weights of another method, from the gradients where tasks part."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._base import GramianAggregator, Property
from lightning_jd.aggregators._registry import register, resolve
from lightning_jd.aggregators._step import Step
from lightning_jd.errors import ArgumentError, GraphError


@register
class FromFeatures(GramianAggregator):
    r"""The weights that another aggregator gives for the gradients at the features.

    .. math::
        \mathcal A(J) = J^\top w(J_z J_z^\top), \qquad J_z = \partial \ell / \partial z

    The features :math:`z` are the activations through which tasks reach what they share, found in
    the graph of the losses. Their gradients need a backward pass of each head only; then one
    ordinary backward pass of the weighted losses gives the update of all parameters. So k tasks
    cost little more than one. What the other aggregator promises holds for the features, not for
    the parameters; it is weighted, and nothing else is claimed.

    In training only: called with a Jacobian or Gramian, it is the other aggregator.

    Args:
        aggregator: The other one, which must be weighted: a name, a dict with name and arguments,
            or an object.
        features: ``None`` to find the activations where tasks part; the name of a module, or a
            pattern of names, for the results of its last operations with a parameter; or, in a loop
            of your own, an activation of this step.

    Raises:
        ArgumentError: If the other one is not weighted, or needs two samples.

    Example:
        >>> FromFeatures("mgda").aggregator
        MGDA()

    References:
        Sener and Koltun, *Multi-Task Learning as Multi-Objective Optimization*, NeurIPS 2018, who
        do so for MGDA.
    """

    properties: ClassVar[frozenset[Property]] = frozenset({Property.WEIGHTED})
    at_features = True

    def __init__(
        self,
        aggregator: str | Mapping[str, Any] | GramianAggregator = "upgrad",
        features: str | Tensor | None = None,
    ) -> None:
        super().__init__()
        inner = resolve(aggregator)
        if not isinstance(inner, GramianAggregator) or inner.halves:
            raise ArgumentError(
                "`aggregator` must be weighted, and by one sample, so that it can be asked about "
                f"features, got {inner.label}. Choose for instance 'upgrad'."
            )
        self.aggregator = inner
        self.ask_like(inner)
        self.uses_values, self.at_features, self.features = inner.uses_values, True, features

    @override
    def weigh(self, gramian: Tensor, step: Step) -> Tensor:
        _check_overlap(gramian)
        return self.aggregator.weigh(gramian, step)

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        return self.aggregator.weights(gramian)

    @override
    def reset(self) -> None:
        """Forget what the other aggregator keeps."""
        self.aggregator.reset()

    @override
    def end_epoch(self) -> None:
        """Tell the other aggregator."""
        self.aggregator.end_epoch()

    @override
    def extra_repr(self) -> str:
        """The features; the other aggregator is shown below."""
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
            "Weights from features must find activations that several tasks depend on, got some at "
            "which tasks part only at their losses: no two gradients have an entry in common (as "
            "for columns of one output). Give every task a head of its own, name a module before, "
            "or take the weights from the parameters."
        )
