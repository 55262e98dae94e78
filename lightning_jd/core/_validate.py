"""Checks of the result of an aggregator, which may be anybody's code, before the update."""

from __future__ import annotations

from math import isfinite

import torch
from torch import Tensor

from lightning_jd.aggregators import Aggregator, Balancer, GramianAggregator, Method, Step
from lightning_jd.errors import AggregatorError, ArgumentError
from lightning_jd.linalg import gramians_trusted

#: Their results are finite by construction, and tested; on an accelerator they are trusted.
_BUILTIN = "lightning_jd.aggregators."


def weights_from(
    method: GramianAggregator | Balancer,
    gramian: Tensor | None,
    step: Step,
    device: torch.device | None = None,
) -> Tensor:
    """The weights of the rows, shape (m,).

    Args:
        method: The aggregator or balancer.
        gramian: The Gramian of the rows; ``None`` for a balancer, which reads losses only.
        step: The rest of its input.
        device: The device of the result; by default that of the Gramian.

    Example:
        >>> from lightning_jd.aggregators import resolve
        >>> weights_from(resolve("mean"), torch.eye(2), Step(("a", "b")))
        tensor([0.5000, 0.5000])
    """
    if isinstance(method, Balancer):
        answer = method.weigh(step)
    else:
        assert gramian is not None
        with gramians_trusted():
            answer = method.weigh(gramian, step)
    weights = _checked(method, answer, len(step.names), "one weight per objective")
    is_there = device is None or device == weights.device
    return weights if is_there else weights.to(device, non_blocking=True)


def direction_from(aggregator: Aggregator, jacobian: Tensor, step: Step) -> Tensor:
    """The direction, shape (n,), of an aggregator that needs the Jacobian (m, n)."""
    answer = aggregator.combine(jacobian, step)
    return _checked(aggregator, answer, jacobian.shape[1], "one number per column")


def check_values(method: Method, *, known: bool) -> None:
    """Raise if a method reads the losses, and only their places in the graph are known."""
    if method.uses_values and not known:
        raise ArgumentError(
            f"{method.label} must know the value of each loss, got the terms of a sum, whose "
            "values are gone. Return the losses themselves, as a dict or list."
        )


def _checked(aggregator: Method, answer: object, size: int, what: str) -> Tensor:
    if not isinstance(answer, Tensor):
        got = type(answer).__name__
        raise _error(aggregator, what, f"a tensor of shape ({size},), got {got}.")
    if answer.shape != (size,):
        raise _error(aggregator, what, f"shape ({size},), got shape {tuple(answer.shape)}.")
    # NaN and infinity survive in a sum, and there may be millions of numbers
    if _is_trusted(aggregator, answer) or isfinite(_sum(answer)):
        return answer
    if bad := (~torch.isfinite(answer)).nonzero().flatten().tolist():
        shown = ", ".join(map(str, bad[:10])) + (", ..." if len(bad) > 10 else "")
        raise _error(
            aggregator,
            what,
            f"all finite, got NaN or infinity in {len(bad)} of {size} (position {shown}). "
            "The losses and their gradients are finite: look for a division by zero, or a root or "
            "logarithm of a negative number, in the aggregator. Nothing was updated.",
        )
    return answer


def _error(aggregator: Method, what: str, but: str) -> AggregatorError:
    return AggregatorError(f"The aggregator {aggregator.label} must return {what}, {but}")


def _sum(numbers: Tensor) -> float:
    is_short = numbers.shape[0] <= 64 and numbers.device.type == "cpu"
    total: float = sum(numbers.tolist()) if is_short else numbers.sum().item()
    return total


def _is_trusted(aggregator: Method, answer: Tensor) -> bool:
    """Whether the check would only make the host wait for the device."""
    return answer.device.type != "cpu" and is_builtin(aggregator)


def is_builtin(method: Method) -> bool:
    """Whether a method is one of this package, and calls no code of others."""
    return type(method).__module__.startswith(_BUILTIN) and not method.is_foreign
