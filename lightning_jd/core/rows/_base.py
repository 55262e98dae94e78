"""The interface of the rows of one step, and what rows of graphs and accumulated rows share.

A new kind of rows implements the abstract methods of :class:`Rows`. Where each process holds its
own rows with all their columns, the other methods are inherited.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_jd.aggregators import Method
from lightning_jd.core.processes._delivery import (
    Delivery,
    Gradients,
    PooledSelection,
    delivered,
)
from lightning_jd.core.processes._layout import Description, Layout
from lightning_jd.core.processes._pool import Pool
from lightning_jd.engines import (
    NamedParameters,
    Objectives,
    Select,
    Slow,
    column_count,
    from_columns,
)
from lightning_jd.errors import GraphError, NonFiniteError

Nonfinite = Literal["raise", "skip"]


class Rows(ABC):
    """The rows of one step: those of this process, and the layout of all processes.

    :meth:`add` takes the losses. :meth:`agree` ends that, and all else comes after it. All
    processes call the same methods in the same order. Arguments are those of
    :func:`lightning_jd.core.rows.collect`.

    Attributes:
        layout: The rows of all processes.
        selected: The parameters that are aggregated.
        plain: Those that keep their plain gradient.
        paths: How the rows of each parameter were computed, where there are rows.
        slow: The parameters whose rows took more than one pass, and why.
        skipped: The names of the objectives that were left out, on all processes.
        has_values: Whether the value of each loss is known.
        skips: Whether objectives that are not finite are left out.
        as_plain: Whether the weights do not depend on the rows. Where hooks clip gradients, so that
            the order of clipping and averaging matters, the order is that of plain training then.
        only_norms: Whether :meth:`squared_norms` will be asked for in place of :meth:`gramian`.
    """

    layout: Layout
    selected: NamedParameters
    plain: NamedParameters

    def __init__(
        self,
        named: NamedParameters,
        *,
        pool: Pool | None = None,
        select: Select = "all",
        nonfinite: Nonfinite = "raise",
    ) -> None:
        self.named, self.pool = named, pool or Pool(named[0][1].device)
        self.paths: dict[str, str] = {}
        self.slow: dict[str, Slow] = {}
        self.skipped: tuple[str, ...] = ()
        self.has_values = True
        self.skips = nonfinite == "skip"
        self.as_plain = False
        self.only_norms = False
        self._which, self._nonfinite = select, nonfinite
        self._can_skip = not self.skips  # errors may advise it
        self._micro_batches = 0
        self._losses: list[Tensor] = []
        self._bad: tuple[str, ...] = ()  # losses of this process that are not finite
        # One process on a device checks losses with the Gramian, in the only wait of the step.
        is_on_device = named[0][1].device.type != "cpu"
        self._checks_losses = self.skips or self.pool.size > 1 or not is_on_device
        self._formats: tuple[Any, ...] = ()  # of the rows of all processes

    @cached_property
    def _selection(self) -> PooledSelection:
        return PooledSelection(self.named, self._which)

    @abstractmethod
    def add(self, objectives: Objectives, *, scale: float | Tensor = 1.0) -> None:
        """Take the losses of one micro-batch.

        Args:
            objectives: The losses.
            scale: They are multiplied by it before they are differentiated, and the results
                divided, so that half-precision gradients do not underflow.
        """

    def unsupported(self, method: Method) -> str | None:
        """Why a method cannot work with these rows, and what to do; ``None`` if it can."""
        return None

    def agree(self, *, exactly: bool, gramian_is_next: bool) -> None:
        """Gather the descriptions of all processes, and derive the layout and the selection.

        Args:
            exactly: Whether parameters that no loss reaches must be left out already here.
            gramian_is_next: Whether the Gramian of all :attr:`selected` will be computed, which
                may come from the passes for :attr:`plain`.
        """
        count = sum(map(len, self._losses))
        formats = self._own_formats() if gramian_is_next else None
        own = (self._selection.seen, self._bad, count, self._description(), formats)
        heard = self.pool.gather(own)
        self._selection.hear(seen for seen, *_ in heard)
        self.skipped = tuple(name for _, names, *_ in heard for name in names)
        if self.skipped and not self.skips:
            raise self.losses_error(self.skipped, sum(number for _, _, number, *_ in heard))
        self.layout = Layout.of(tuple(description for *_, description, _ in heard))
        self._formats = tuple(formats for *_, formats in heard)
        self.selected, self.plain = self._selection.selected, self._selection.plain
        if self.layout.m and not self._selection.reached:
            raise nothing_reached(len(self.named))

    def values(self, *, wanted: bool) -> Tensor | None:
        """The losses of all rows, shape (m,); unless ``wanted``, ``None`` may save a message."""
        if not wanted:
            return None
        like = self.like()
        own = torch.cat([like, *(values.to(like) for values in self._own_values())])
        return self.pool.sum(self.layout.placed(own, self.pool.rank), "losses")

    @abstractmethod
    def gramian(self, named: NamedParameters) -> Tensor:
        """The Gramian of all rows over some parameters, shape (m, m), equal on all processes."""

    def squared_norms(self, named: NamedParameters) -> Tensor:
        """The diagonal of :meth:`gramian`, shape (m,); cheaper where no row is in several parts."""
        return self.gramian(named).diagonal()

    def jacobian(self, named: NamedParameters) -> Tensor:
        """The rows over some parameters, shape (m, n), on the first process; elsewhere n is 0."""
        raise AssertionError("`unsupported` must refuse methods that need the rows")

    def features_gramian(self, features: str | Tensor | None) -> Tensor:
        """The Gramian of the gradients at ``features``, those of FromFeatures, shape (m, m)."""
        raise AssertionError("`unsupported` must refuse weights from features")

    def combine(self, named: NamedParameters, weights: Tensor, delivery: Delivery) -> Gradients:
        """This process's part of ``weights @ J`` over some parameters, each of them once.

        Returns:
            Name of a parameter to its gradient, where some row reaches it.
        """
        own = self.layout.own_weights(weights, self.pool.rank)
        return self._own_gradients(named, self.pool.size * own if delivery.averaged else own)

    def plain_gradients(self, delivery: Delivery) -> Gradients:
        """This process's part of the gradients of :attr:`plain`, those of ordinary training."""
        return self.combine(self.plain, self.plain_weights(), delivery)

    def delivered(self, own: Gradients, complete: Gradients, delivery: Delivery) -> Gradients:
        """The gradients that this process adds to ``.grad``, see :func:`delivered`."""
        return delivered(self.pool, self._selection, own, complete, delivery)

    def combined(self, weights: Tensor) -> Tensor | None:
        """The weighted sum of the losses, if an ordinary pass of it is all that is left."""
        return None

    @abstractmethod
    def finite_only(self, finite: Sequence[bool]) -> Rows:
        """The same step without the rows that are not finite; an error if none may be left out.

        The result has agreed already. It may hold rows that are not finite, too: rows that are
        computed together spoil one another, and are computed one by one first.
        """

    def shown(self) -> Tensor:
        """The losses of this process, detached, or a scalar that stands for them."""
        return torch.cat([self.like(), *self._losses])

    def plain_weights(self) -> Tensor:
        """The weights of ordinary training, shape (m,): sum over tasks, mean over all else."""
        return self.like().new_full((self.layout.m,), self.layout.plain_weight)

    def like(self) -> Tensor:
        """An empty tensor of the type and on the device of the Gramian."""
        wide = any(tensor.dtype.to_real() == torch.float64 for _, tensor in self.named)
        dtype = torch.float64 if wide else torch.float32
        return torch.empty(0, dtype=dtype, device=self.named[0][1].device)

    def losses_error(self, bad: Sequence[str], total: int) -> NonFiniteError:
        """The error for the losses ``bad`` of ``total``, which are NaN or infinite."""
        remedy = "lower the learning rate, or set nonfinite='skip'"
        return NonFiniteError(
            f"Losses must be finite, got NaN or infinity in {len(bad)} of {total}"
            f"{self._whereabouts()}: {_listed(bad)}. Look at the inputs of these objectives, "
            f"{remedy if self._can_skip else 'or lower the learning rate'}."
        )

    def gradients_error(self, bad: Sequence[str]) -> NonFiniteError:
        """The error for rows that are NaN or infinite; ``bad`` are their names."""
        return NonFiniteError(
            f"Gradients must be finite, got NaN or infinity in those of {len(bad)} of "
            f"{self.layout.m} objectives{self._whereabouts()}: {_listed(bad)}. Their losses are "
            "finite: look for a square root, a logarithm or a division at its limit"
            f"{', or set nonfinite=' + repr('skip') if self._can_skip else ''}."
        )

    def _description(self) -> Description:
        """The description of the rows of this process, which the other processes receive."""
        raise AssertionError("rows without a description must override `agree`")

    @abstractmethod
    def _own_values(self) -> list[Tensor]:
        """The losses of the rows of this process, as vectors in the order of the rows."""

    @abstractmethod
    def _own_gradients(self, named: NamedParameters, weights: Tensor) -> Gradients:
        """Combine the rows of this process, with one weight each."""

    def _own_formats(self) -> tuple[Any, ...] | None:
        """Names and formats of the selected rows, if they are known before the roll call."""
        return None

    def _note(self, objectives: Objectives) -> Objectives | None:
        """Record a micro-batch; return its finite losses, or ``None`` if there are none."""
        self._micro_batches += 1
        self._selection.add(objectives)
        self._losses.append(objectives.values())
        self.has_values = self.has_values and objectives.has_values
        bad = objectives.nonfinite() if self._checks_losses else ()
        self._bad += bad
        return without(objectives, bad) if bad or not objectives.m else objectives

    def _names(self, finite: Sequence[bool]) -> list[str]:
        """The names of the rows that are not finite."""
        return [name for name, fine in zip(self.layout.names, finite, strict=True) if not fine]

    def _whereabouts(self) -> str:
        batches = f" in {self._micro_batches} micro-batches" if self._micro_batches > 1 else ""
        return batches + (f" on {self.pool.size} processes" if self.pool.size > 1 else "")


def nothing_reached(parameters: int) -> GraphError:
    """The error for losses that depend on none of some parameters."""
    return GraphError(
        f"Losses must depend on a parameter, got a graph that reaches none of {parameters}. "
        "Reentrant checkpointing hides them (use `use_reentrant=False`), and so do "
        "`torch.no_grad()` and `detach()`."
    )


def per_parameter(direction: Tensor, named: NamedParameters) -> Gradients:
    """Cut a direction of shape (n,) into the gradients of the parameters."""
    parts = direction.split([column_count(tensor) for _, tensor in named])
    return {
        name: from_columns(part, tensor) for part, (name, tensor) in zip(parts, named, strict=True)
    }


def columns_of(J: Tensor, named: NamedParameters, some: NamedParameters) -> Tensor:
    """The columns of some of the parameters that a Jacobian is about, in its order."""
    if len(some) == len(named):
        return J
    wanted = {name for name, _ in some}
    parts = J.split([column_count(tensor) for _, tensor in named], dim=1)
    own = zip(parts, named, strict=True)
    return torch.cat([part for part, (name, _) in own if name in wanted], dim=1)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:10])) + (", ..." if len(names) > 10 else "")


def without(objectives: Objectives, names: Sequence[str]) -> Objectives | None:
    """The objectives that are not named; ``None`` if none is left.

    Example:
        >>> objectives = Objectives.of(torch.ones(3, requires_grad=True) * 2)
        >>> without(objectives, ["1"]).names
        ('0', '2')
    """
    kept = [i for i, name in enumerate(objectives.names) if name not in names]
    if not kept:
        return None
    remaining = tuple(objectives.names[i] for i in kept)
    known = None if objectives.known is None else objectives.known[kept]
    if isinstance(objectives.losses, Tensor):
        # A matrix with holes is no matrix: its entries become a list of rows.
        kind = "instances" if objectives.kind == "instances_tasks" else objectives.kind
        with torch.enable_grad():
            losses = objectives.losses.reshape(-1)[kept]
        return Objectives(remaining, kind, losses, objectives.total, known)
    terms = tuple(objectives.losses[i] for i in kept)
    return Objectives(remaining, objectives.kind, terms, objectives.total, known)
