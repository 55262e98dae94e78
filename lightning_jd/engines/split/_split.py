"""From a scalar to objectives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from lightning_jd.engines._graph import Place
from lightning_jd.engines._objectives import Objectives, Term
from lightning_jd.engines.split._drawing import drawing_of
from lightning_jd.engines.split._instances import NotSeparableError, instances_of
from lightning_jd.engines.split._names import names_from_log, names_from_operations
from lightning_jd.engines.split._operations import is_linear, reduces_examples
from lightning_jd.engines.split._penalties import Penalties, merged_penalties
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
    parameters: Iterable[tuple[str, Tensor]] = (),
) -> Objectives:
    """Read a scalar loss as several objectives.

    Terms that depend on parameters only, such as the penalties of several weights, are one term.

    Args:
        loss: A number that requires a gradient, of shape () or (1,).
        split: How.
        logged: Numbers that go by names, which name the terms that have the same values.
        parameters: Named tensors that are parameters, also where they are no
            :class:`torch.nn.Parameter`.

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
    own = {id(parameter) for _, parameter in parameters}
    if how.by != "instances":
        found = terms_of(loss, own)
        merged = merged_penalties(found, own, loss.dtype)
        if how.names is not None and len(how.names) == len(found):
            merged = None
        count = len(found) if merged is None else len(found) - len(merged.places) + 1
        if how.by == "terms" or count >= max(2, how.least):
            return _tasks(loss, how, found, logged or {}, merged)
    try:
        vector = instances_of(loss, own)
    except NotSeparableError as reason:
        if loss.ndim > 0 and not _is_reduced(loss):
            return Objectives.of(loss.reshape(1))  # a batch of one, whose losses are a vector
        raise GraphError(
            f"A loss must be a mean or sum over the batch to be split into instances, but {reason}."
            + (" Nor has it several terms." if how.by == "auto" else "")
            + f" Its graph ends with\n{drawing_of(loss)}\nReturn one loss per example instead, for "
            "instance with reduction='none'" + _or_the_other(how, loss)
        ) from reason
    names = tuple(map(str, range(len(vector))))
    return Objectives(names, "instances", vector, loss.detach().reshape(()))


def _is_reduced(loss: Tensor) -> bool:
    node = root_of(loss)[0]
    return is_linear(node) or reduces_examples(node)


def _tasks(
    loss: Tensor,
    how: Split,
    found: Mapping[Place, Term],
    logged: Mapping[str, float],
    merged: Penalties | None,
) -> Objectives:
    values: list[Tensor | None] = []
    terms: list[Tensor | Term] = []
    factors: list[Tensor] = []
    operations: list[str] = []
    for place, term in found.items():
        if merged is None or place not in merged.places:
            values.append(value_at(place))
            terms.append(term)
            factors.append(term.factor)
            operations.append(operation(place[0]))
        elif place == merged.places[0]:
            values.append(merged.value)
            terms.append(merged.surrogate)
            factors.append(torch.ones_like(term.factor))
            operations.append("parameters")
    if not how.least <= len(terms) <= how.most:
        listed = ", ".join(operations[:10])
        raise GraphError(
            f"A loss must be a sum of {how.least} to {how.most} terms to be split, got "
            f"{len(terms)} ({listed}{', ...' if len(terms) > 10 else ''}). Its graph ends with\n"
            f"{drawing_of(loss)}\nReturn the losses themselves instead, "
            "{'loss': {'name': ..., 'other': ...}}, or allow other numbers of terms, "
            f"split={{'by': 'terms', 'least': {min(how.least, len(terms)) or 1}, "
            f"'most': {max(how.most, len(terms))}}}" + _or_the_other(how, loss)
        )
    known = None
    if all(value is not None for value in values):
        known = torch.stack(
            [v.reshape(()) * f.reshape(()) for v, f in zip(values, factors, strict=True)]  # type: ignore[union-attr]
        )
    names = names_from_operations(operations)
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
    return Objectives(tuple(names), "tasks", tuple(terms), loss.detach().reshape(()), known)


def _or_the_other(how: Split, loss: Tensor) -> str:
    if operation(root_of(loss)[0]).startswith("Compiled"):
        return ". The loss comes out of a compiled function, which shows no more: compile less."
    other = {"terms": "instances", "instances": "terms"}.get(how.by)
    return "." if other is None else f"; or try split={other!r}."
