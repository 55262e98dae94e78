"""Matrix weights whose rows need not be formed, because all objectives share the input."""

from __future__ import annotations

from torch import Tensor
from torch.autograd.graph import Node

from lightning_jd.engines.tape.plan._plan import Plan
from lightning_jd.engines.tape.plan._uses import Use


def cheaper_without_gradients(plan: Plan, use: Use, m: int) -> bool:
    """Whether a use is a matrix weight for which :class:`SharedActivations` takes fewer operations.

    Args:
        plan: The plan that the use is from.
        use: A use that no other use of its parameters overlaps with.
        m: The number of objectives.
    """
    record = plan.records[use.node]
    if (record.name, use.slots[0]) not in {("AddmmBackward0", 2), ("MmBackward0", 1)}:
        return False
    (n, o), i = record.shapes[0], use.placements[0].shape[0]
    without = n * n * i + m * n * n * o + m * m * n * o
    return without < m * n * i * o + m * m * i * o


def shared_input(node: Node, use: Use) -> Tensor | None:
    """The activations that meet a weight in ``b + x W``; ``None`` if there are other factors."""
    if node.name() == "MmBackward0":
        return node._saved_self  # type: ignore[attr-defined,no-any-return]
    has_bias = len(use.slots) > 1
    if node._saved_alpha != 1:  # type: ignore[attr-defined]
        return None
    if has_bias and (node._saved_beta != 1 or len(use.placements[1].shape) != 1):  # type: ignore[attr-defined]
        return None
    return node._saved_mat1  # type: ignore[attr-defined,no-any-return]
