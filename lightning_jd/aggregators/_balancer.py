"""Methods that use loss values only: no Jacobian, one ordinary backward pass."""

from abc import abstractmethod
from dataclasses import replace

import torch
from torch import Tensor

from lightning_jd.aggregators._base import Method
from lightning_jd.aggregators._step import Step
from lightning_jd.errors import ArgumentError, ShapeError


class Balancer(Method):
    r"""Weights :math:`w` of the losses; the update is the gradient of :math:`\sum_i w_i \ell_i`.

    The weights are constants: no gradient flows through them. If the paper defines a scalarization
    :math:`S(\ell)` instead, :math:`w = \partial S / \partial \ell`.

    A subclass defines :meth:`balance`. For a matrix of losses (instance and task) it receives the
    mean loss of each task, and the weight of a task is divided equally among its instances.
    """

    uses_values: bool = True

    @abstractmethod
    def balance(self, losses: Tensor, step: Step) -> Tensor:
        """The weights, shape ``(m,)``.

        Args:
            losses: One per objective, float64.
            step: Their names.
        """

    @torch.no_grad()
    def weigh(self, step: Step) -> Tensor:
        """The weights of one training step, in the dtype and on the device of the losses."""
        losses = step.losses(type(self).__name__)
        if step.kind == "instances_tasks":
            k = step.columns
            tasks = replace(step, names=tuple(map(str, range(k))), kind="tasks")
            shares = self.balance(losses.view(-1, k).mean(dim=0), tasks) / (len(losses) // k)
            weights = shares.repeat(len(losses) // k)
        else:
            weights = self.balance(losses, step)
        assert step.values is not None
        return weights.to(step.values)

    def weights(self, values: Tensor) -> Tensor:
        """The weights of losses that are named by position.

        Args:
            values: The losses, shape ``(m,)``.
        """
        if values.ndim != 1 or not values.is_floating_point():
            raise ShapeError(
                f"`values` must be a vector of losses, shape (m,), got {tuple(values.shape)} "
                f"{values.dtype}."
            )
        return self.weigh(Step(tuple(map(str, range(len(values)))), values))


def check_positive(method: str, losses: Tensor, step: Step) -> None:
    """Raise unless all losses are positive, for methods that take their logarithm."""
    if bool((losses > 0).all()):
        return
    pairs = zip(step.names, losses.tolist(), strict=True)
    bad = [f"{name!r} ({loss:.4g})" for name, loss in pairs if not loss > 0]
    raise ArgumentError(
        f"{method} must have positive losses, whose logarithm it takes, got "
        f"{', '.join(bad[:10])}. Add a constant to these losses, or choose another method."
    )
