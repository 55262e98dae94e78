"""The table of rules: how an operation turns cotangents into gradients per objective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import Node

from lightning_jd.engines.tape.contributions import Contribution
from lightning_jd.engines.tape.graph import Placement, table_changed
from lightning_jd.engines.tape.owners import Arrangement
from lightning_jd.errors import ArgumentError

_Result = TypeVar("_Result")


class NotApplicableError(Exception):
    """Raised by a rule that does not cover the case at hand; the general way is taken then."""


def require(condition: bool) -> None:
    """Raise unless a rule covers the case at hand.

    Raises:
        NotApplicableError: If it does not.
    """
    if not condition:
        raise NotApplicableError


@dataclass(slots=True)
class Site:
    """One operation that consumes a parameter, in one backward pass.

    Attributes:
        node: The autograd node of the operation.
        slots: The inputs of the node that are asked for: one, or a weight and its bias.
        cotangents: The gradient of the losses at each output of the operation.
        arrangement: Which slices of the first output that is used belong to which objective;
            ``None`` if that does not say it of all outputs, in which case no rule is asked.
        placements: Where each asked input is in its parameter; its shape is in ``shape``.
        dtype: The type to compute in.
        read: Reads what autograd saved, by name, where it must not be read from the node.
        results: What :meth:`once` has computed for this operation in this pass.
    """

    node: Node
    slots: tuple[int, ...]
    cotangents: tuple[Tensor | None, ...]
    arrangement: Arrangement | None
    placements: tuple[Placement, ...]
    dtype: torch.dtype
    read: Callable[[str], Any] | None = None
    results: dict[Any, Any] = field(default_factory=dict)

    @property
    def owners(self) -> Arrangement:
        """Which slices of the output belong to which objective."""
        if self.arrangement is None:
            raise NotApplicableError
        return self.arrangement

    @property
    def m(self) -> int:
        """The number of objectives."""
        return self.owners.m

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the asked input."""
        return self.placements[0].shape

    @property
    def cotangent(self) -> Tensor:
        """The gradient of the losses at the first output, not sorted by owner."""
        cotangent = self.cotangents[0]
        if cotangent is None:
            raise NotApplicableError
        return cotangent

    @property
    def cotangent_like(self) -> Tensor:
        """Some cotangent, for its device."""
        return next(cotangent for cotangent in self.cotangents if cotangent is not None)

    def saved(self, name: str) -> Any:
        """An argument that autograd saved, such as ``"input"`` or ``"stride"``."""
        return getattr(self.node, "_saved_" + name) if self.read is None else self.read(name)

    def once(self, compute: Callable[[Site], _Result]) -> _Result:
        """What several inputs of one operation need, computed for the first of them."""
        if compute not in self.results:
            self.results[compute] = compute(self)
        found: _Result = self.results[compute]
        return found

    def split(self, x: Tensor) -> Tensor:
        """Slices of an activation by owner, shape ``(m, T, *rest)``, in the type to compute in.

        Args:
            x: A tensor whose axis ``owners.axis`` is that of the output.
        """
        return self.owners.split(x).to(self.dtype)

    def cast(self, x: Tensor) -> Tensor:
        """A result in the type to compute in, complex if it is."""
        return x.to(self.dtype.to_complex() if x.is_complex() else self.dtype)

    def split_cotangent(self) -> Tensor:
        """:meth:`split` of the cotangent; padding, where there is some, is zero."""
        return self.owners.split_cotangent(self.cotangent).to(self.dtype)


#: Returns a contribution, or the gradients of all objectives, shape ``(m, *site.shape)``.
Rule = Callable[[Site], Contribution | Tensor]


@dataclass(frozen=True)
class RuleEntry:
    """A rule with the arguments of :func:`register_rule`."""

    function: Rule | None = None
    saved: tuple[str, ...] = ()
    bias: int | None = None
    outputs: int = 1


_RULES: dict[tuple[str, int], RuleEntry] = {}
_NO_RULE = RuleEntry()


def register_rule(
    name: str,
    slot: int,
    *,
    saved: tuple[str, ...] = (),
    bias: int | None = None,
    outputs: int = 1,
) -> Callable[[Rule], Rule]:
    """Teach the tape an operation.

    Args:
        name: The name of the autograd node, ``y.grad_fn.name()``, such as ``"MulBackward0"``.
        slot: Which input of the operation is the parameter: a position in
            ``y.grad_fn.next_functions``.
        saved: The saved tensors that the rule reads. Needed where activations are checkpointed: a
            saved tensor can then be read once per pass only, and is read ahead for the rule.
        bias: Another slot that the same rule can include in its contribution.
        outputs: How many outputs of the operation the rule reads the cotangents of. It is not asked
            where a loss depends on others.

    Raises:
        ArgumentError: If there is a rule for this input already.
    """

    def register(rule: Rule) -> Rule:
        if (name, slot) in _RULES:
            raise ArgumentError(
                f"`register_rule` must name an input without a rule, got {name!r}, slot {slot}. "
                "Remove the old one with `unregister_rule` first."
            )
        _RULES[name, slot] = RuleEntry(rule, saved, bias, outputs)
        table_changed()
        return rule

    return register


def unregister_rule(name: str, slot: int) -> None:
    """Forget a rule; the operation is then differentiated by the general way."""
    _RULES.pop((name, slot), None)
    table_changed()


def rule_at(name: str, slot: int) -> RuleEntry:
    """The rule for an input of an operation; one without a function if there is none."""
    return _RULES.get((name, slot), _NO_RULE)
