"""From a scalar to objectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from lightning_jd.engines._objectives import Objectives
from lightning_jd.engines.split._drawing import drawing_of
from lightning_jd.engines.split._instances import NotSeparableError, instances_of
from lightning_jd.engines.split._names import names_from_log, names_from_operations
from lightning_jd.engines.split._region import operation, root_of
from lightning_jd.engines.split._terms import terms_of
from lightning_jd.engines.split._values import value_at
from lightning_jd.errors import ArgumentError, GraphError

By = Literal["terms", "instances", "auto"]


@dataclass(frozen=True)
class Split:
    """How a scalar loss is split.

    Attributes:
        by: ``"terms"`` of its sum, ``"instances"`` of its batch, or ``"auto"``: terms if there are
            several, else instances.
        names: One per term, in the order in which they are written; ``None`` for those that the
            module logs, or else of their operations.
        least: The least number of terms, and
        most: the largest, beyond which a mistake is more likely.

    Raises:
        ArgumentError: If an argument is not one of its values.
    """

    by: By = "auto"
    names: tuple[str, ...] | None = None
    least: int = 2
    most: int = 64

    def __post_init__(self) -> None:
        if self.by not in get_args(By):
            listed = ", ".join(map(repr, get_args(By)))
            raise ArgumentError(f"`split` must be one of {listed}, got {self.by!r}.")
        if not 1 <= self.least <= self.most:
            raise ArgumentError(
                "`split` must have 1 <= least <= most, got "
                f"least={self.least!r} and most={self.most!r}."
            )
        if self.names is not None and len(set(self.names)) != len(self.names):
            raise ArgumentError(f"`split` must have distinct names, got {list(self.names)}.")

    @classmethod
    def of(cls, spec: str | Mapping[str, Any] | Split | None) -> Split | None:
        """Read what a user may write: a word, or a dict with ``by`` and the other attributes.

        Example:
            >>> Split.of({"by": "terms", "names": ["reconstruction", "kl"]}).names
            ('reconstruction', 'kl')
        """
        if spec is None or isinstance(spec, Split):
            return spec
        if isinstance(spec, str):
            return cls(spec)  # type: ignore[arg-type]  # checked there
        try:
            arguments = dict(spec)
            if isinstance(names := arguments.get("names"), Sequence) and not isinstance(names, str):
                arguments["names"] = tuple(map(str, names))
            return cls(**arguments)
        except (TypeError, ValueError) as error:
            if isinstance(error, ArgumentError):
                raise
            raise ArgumentError(
                "`split` must be 'terms', 'instances', 'auto', or a dict with some of 'by', "
                f"'names', 'least' and 'most', got {spec!r}."
            ) from error


#: What a user may write.
SplitSpec = str | Mapping[str, Any] | Split | None


def split_loss(
    loss: Tensor,
    split: str | Mapping[str, Any] | Split,
    logged: Mapping[str, float] | None = None,
) -> Objectives:
    """Read a scalar loss as several objectives.

    Args:
        loss: A scalar that requires a gradient.
        split: How.
        logged: Numbers that go by names, which name the terms that have the same values.

    Returns:
        Tasks, the terms times their factors, whose sum is the loss; or instances, whose mean it is,
        up to constants.

    Raises:
        GraphError: If the loss cannot be split; the message draws the top of its graph.
    """
    how = Split.of(split)
    assert how is not None
    if not loss.requires_grad or loss.grad_fn is None:
        raise GraphError(
            "A loss must be computed from parameters to be split, got one without a graph. Look "
            "for `detach()` or `torch.no_grad()`."
        )
    found = terms_of(loss) if how.by != "instances" else {}
    if how.by == "terms" or len(found) >= max(2, how.least):
        return _tasks(loss, how, found, logged or {})
    try:
        vector = instances_of(loss)
    except NotSeparableError as reason:
        raise GraphError(
            f"A loss must be a mean or sum over the batch to be split into instances, but {reason}."
            + (" Nor has it several terms." if how.by == "auto" else "")
            + f" Its graph ends with\n{drawing_of(loss)}\nReturn one loss per example instead, for "
            "instance with reduction='none'" + _or_the_other(how, loss)
        ) from reason
    names = tuple(map(str, range(len(vector))))
    return Objectives(names, "instances", vector, loss.detach())


def _tasks(
    loss: Tensor, how: Split, found: Mapping[Any, Any], logged: Mapping[str, float]
) -> Objectives:
    if not how.least <= len(found) <= how.most:
        listed = ", ".join(operation(node) for node, _ in list(found)[:10])
        raise GraphError(
            f"A loss must be a sum of {how.least} to {how.most} terms to be split, got "
            f"{len(found)} ({listed}{', ...' if len(found) > 10 else ''}). Its graph ends with\n"
            f"{drawing_of(loss)}\nReturn the losses themselves instead, "
            "{'loss': {'name': ..., 'other': ...}}" + _or_the_other(how, loss)
        )
    values = [value_at(place) for place in found]
    terms = tuple(found.values())
    factors = [term.factor for term in terms]
    known = None
    if all(value is not None for value in values):
        known = torch.stack(
            [v.reshape(()) * f.reshape(()) for v, f in zip(values, factors, strict=True)]  # type: ignore[union-attr]
        )
    names = names_from_operations(operation(node) for node, _ in found)
    if how.names is not None:
        if len(how.names) != len(terms):
            raise GraphError(
                f"`names` must have one entry per term, got {list(how.names)} for {len(terms)} "
                f"terms: {', '.join(names)}. Leave them out, and log the terms under their names "
                "instead, if some batches lack a term."
            )
        names = list(how.names)
    elif logged:
        names = names_from_log(names, values, factors, logged)
    return Objectives(tuple(names), "tasks", terms, loss.detach(), known)


def _or_the_other(how: Split, loss: Tensor) -> str:
    if operation(root_of(loss)[0]).startswith("Compiled"):
        return ". The loss comes out of a compiled function, which shows no more: compile less."
    other = {"terms": "instances", "instances": "terms"}.get(how.by)
    return "." if other is None else f"; or try split={other!r}."
