"""What an aggregator answers is looked at before it becomes an update: it may be anybody's code."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_jd.aggregators import Aggregator, GramianAggregator
from lightning_jd.errors import AggregatorError

#: Their answers are finite by construction, and tested; on an accelerator they are believed.
_OURS = "lightning_jd.aggregators."


def weights_from(aggregator: GramianAggregator, gramian: Tensor) -> Tensor:
    """The weights of the rows, shape (m,).

    Raises:
        AggregatorError: If they are not m finite numbers.

    Example:
        >>> from lightning_jd.aggregators import resolve
        >>> weights_from(resolve("mean"), torch.eye(2))
        tensor([0.5000, 0.5000])
    """
    answer = aggregator.weights(gramian)
    return _checked(aggregator, answer, len(gramian), "one weight per objective")


def direction_from(aggregator: Aggregator, jacobian: Tensor) -> Tensor:
    """The direction, shape (n,), of an aggregator that needs the Jacobian (m, n).

    Raises:
        AggregatorError: If it is not n finite numbers.
    """
    answer = aggregator(jacobian)
    return _checked(aggregator, answer, jacobian.shape[1], "one number per column")


def _checked(aggregator: Aggregator, answer: object, size: int, what: str) -> Tensor:
    must = f"The aggregator {aggregator.label} must return {what}, "
    if not isinstance(answer, Tensor):
        raise AggregatorError(f"{must}a tensor of shape ({size},), got {type(answer).__name__}.")
    if answer.shape != (size,):
        raise AggregatorError(f"{must}shape ({size},), got shape {tuple(answer.shape)}.")
    if _is_believed(aggregator, answer):
        return answer
    finite = torch.isfinite(answer)
    if not bool(finite.all()):
        bad = (~finite).nonzero().flatten().tolist()
        shown = ", ".join(map(str, bad[:10])) + (", ..." if len(bad) > 10 else "")
        raise AggregatorError(
            f"{must}all finite, got NaN or infinity in {len(bad)} of {size} (position {shown}). "
            "The losses and their gradients are finite: look for a division by zero, or a root or "
            "logarithm of a negative number, in the aggregator. Nothing was updated."
        )
    return answer


def _is_believed(aggregator: Aggregator, answer: Tensor) -> bool:
    """Whether looking at the answer would make the host wait, for nothing."""
    return answer.device.type != "cpu" and (
        type(aggregator).__module__.startswith(_OURS) and not aggregator.is_foreign
    )
