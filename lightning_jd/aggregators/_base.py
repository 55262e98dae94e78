"""The base classes of aggregators, and the properties that an aggregator can claim."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from inspect import signature
from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from lightning_jd.aggregators._step import Step
from lightning_jd.errors import ShapeError
from lightning_jd.linalg import (
    are_gramians_trusted,
    check_finite,
    check_matrix,
    check_semidefinite,
    check_square,
)


class Property(Enum):
    r"""A property that an aggregator :math:`\mathcal A` has for every Jacobian :math:`J`.

    For a random aggregator, equalities hold for the same draw on both sides, and the inequality
    holds with probability one.
    """

    NON_CONFLICTING = "non-conflicting"
    r""":math:`J \mathcal A(J) \succeq 0`: to first order, no objective gets worse."""
    LINEAR_UNDER_SCALING = "linear under scaling"
    r""":math:`c \mapsto \mathcal A(\operatorname{diag}(c) J)` is linear in :math:`c \succ 0`."""
    WEIGHTED = "weighted"
    r""":math:`\mathcal A(J) = J^\top w` for some :math:`w`: a linear combination of the rows."""
    PERMUTATION_INVARIANT = "permutation invariant"
    r""":math:`\mathcal A(P J) = \mathcal A(J)` for every permutation :math:`P` of the rows."""


class Method(nn.Module, ABC):
    """Base class of :class:`Aggregator` and :class:`Balancer`: combines losses into one update.

    Constructor arguments are numbers, strings or sequences, stored as attributes of the same name.
    The decorator :func:`~lightning_jd.aggregators.register` assigns the ``name`` under which
    :func:`~lightning_jd.aggregators.resolve` finds it.

    Attributes:
        name: The registered name; empty if the class is not registered.
        uses_values: Whether it reads the loss values, not only their gradients.
        halves: Whether it requires two independent samples of each task, see
            :class:`~lightning_jd.aggregators._halves.Halves`.
        at_features: Whether it uses the Gramian of the gradients at the features instead of the
            parameters.
        keeps_small_tasks: Whether it opposes no task because of its units, see the table of
            methods; ``None`` if that depends on a wrapped method.
        features: The features: an activation, or the name of a module; ``None`` for the activations
            where the tasks branch.
    """

    name: ClassVar[str] = ""
    keeps_small_tasks: ClassVar[bool | None] = False
    uses_values: bool = False
    halves: bool = False
    at_features: bool = False
    features: str | Tensor | None = None
    #: Whether it calls code outside this package, whose results are always checked.
    is_foreign: bool = False

    def __init__(self) -> None:
        super().__init__()

    @property
    def label(self) -> str:
        """The name in messages: the registered name, or else the class name."""
        return self.name or type(self).__name__

    def ask_like(self, other: Method) -> None:
        """Copy the flags of a wrapped method, which does the computation."""
        self.is_foreign = other.is_foreign
        self.at_features, self.features = other.at_features, other.features

    def turn(self) -> Method:
        """The method to use in the next step; every process calls this once per step."""
        return self

    def reset(self) -> None:  # most methods keep nothing
        """Reset the state, for a new run."""

    def end_epoch(self) -> None:  # most methods do not know epochs
        """Signal the end of an epoch. The callback calls this; in your own loop, you do."""

    @override
    def extra_repr(self) -> str:
        """The constructor arguments that are stored as attributes; torch adds those in modules."""
        kept = {n: getattr(self, n) for n in signature(type(self)).parameters if hasattr(self, n)}
        return ", ".join(f"{n}={v!r}" for n, v in kept.items() if not isinstance(v, nn.Module))


class Aggregator(Method):
    """Maps a Jacobian ``(m, n)``, one row per objective, to one direction ``(n,)``.

    A subclass defines :meth:`aggregate` and declares its ``properties``. If it also needs task
    names or losses, or has a state, it also defines :meth:`combine`.
    """

    properties: ClassVar[frozenset[Property]] = frozenset()

    @abstractmethod
    def aggregate(self, jacobian: Tensor) -> Tensor:
        """Combine the rows of ``jacobian`` ``(m, n)`` into ``(n,)``; its shape has been checked."""

    def combine(self, jacobian: Tensor, step: Step) -> Tensor:
        """The direction ``(n,)`` of one training step.

        Args:
            jacobian: The rows, shape ``(m, n)``.
            step: Names and losses of the rows.
        """
        direction: Tensor = self(jacobian)
        return direction

    @override
    @torch.no_grad()
    def forward(self, jacobian: Tensor) -> Tensor:
        """Check the shape of ``jacobian`` ``(m, n)`` and aggregate its rows to ``(n,)``."""
        check_matrix("jacobian", jacobian)
        with torch.autocast(jacobian.device.type, enabled=False):  # no Gramian in half precision
            return self.aggregate(jacobian)


class GramianAggregator(Aggregator):
    r"""An aggregator :math:`J^\top w(G)` whose weights depend on the Gramian only.

    A subclass defines :meth:`weights`. It requires only :math:`G = J J^\top`, so the Jacobian is
    never stored. If it also needs task names or losses, or has a state, it also defines
    :meth:`weigh`.

    Attributes:
        reads_gramian: Whether the weights depend on the entries of the Gramian. If not, a step does
            not wait for the device to compute them.
        only_norms: Whether the weights depend on the diagonal only. A step may then give a Gramian
            whose other entries are zero.
    """

    reads_gramian: bool = True
    only_norms: bool = False

    @abstractmethod
    def weights(self, gramian: Tensor) -> Tensor:
        r"""The weights :math:`w`.

        Args:
            gramian: :math:`G = J J^\top`, shape ``(m, m)``, positive semi-definite up to rounding.

        Returns:
            One weight per objective, shape ``(m,)``, in the dtype and on the device of ``gramian``.

        Raises:
            ShapeError: If ``gramian`` is not a square floating-point matrix.
            NonFiniteError: If an entry is NaN or infinite; the message names the rows.
        """

    def weigh(self, gramian: Tensor, step: Step) -> Tensor:
        """The weights of one training step; shapes and errors as in :meth:`weights`.

        Args:
            gramian: The Gramian of the rows.
            step: Names and losses of the rows.
        """
        return self.weights(gramian)

    @override
    def aggregate(self, jacobian: Tensor) -> Tensor:
        """The weighted sum of the rows of ``jacobian``."""
        J = jacobian.float() if jacobian.dtype.itemsize < 4 else jacobian  # half overflows in G
        G = J @ J.T
        if not bool(G.isfinite().all()):
            check_finite("jacobian", jacobian)  # NaN spreads in G: name the rows it comes from
            check_finite("gramian", G)
        return (self.weights(G) @ J).to(jacobian.dtype)


def check_gramian(gramian: Tensor) -> None:
    """Raise unless ``gramian`` is a finite square matrix, and may be a Gramian."""
    if not are_gramians_trusted():
        check_square("gramian", gramian)
        check_finite("gramian", gramian)
        check_semidefinite("gramian", gramian)


def check_weights(source: str, weights: object, gramian: Tensor) -> Tensor:
    """Return what foreign code gave as ``weights`` in the dtype of ``gramian``, if there are m."""
    if not isinstance(weights, Tensor):
        raise ShapeError(
            f"{source} must return a tensor with one weight per objective, got "
            f"{type(weights).__name__}. Wrap it in `torch.tensor(...)`."
        )
    if weights.shape != gramian.shape[:1]:
        raise ShapeError(
            f"{source} must return one weight per objective, shape ({len(gramian)},), "
            f"got shape {tuple(weights.shape)}."
        )
    return weights.to(gramian)
