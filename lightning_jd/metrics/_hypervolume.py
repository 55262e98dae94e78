"""How much of the space of the tasks a set of solutions dominates."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.errors import ShapeError
from lightning_jd.linalg import placed
from lightning_jd.metrics._tasks import Better, Narrowing, as_float64, check_tasks, towards_better


def hypervolume(
    points: Tensor, reference: Tensor | Sequence[float], higher_is_better: Better
) -> Tensor:
    r"""Exact volume of the region dominated by the points and bounded by the reference.

    .. math:: \lambda\Bigl(\bigcup_{p} \prod_{i=1}^{k} [r_i, p_i]\Bigr)

    with the reference :math:`r`, if higher values are better. Points that do not dominate the
    reference contribute nothing. The computation slices along the last task and recurses: up to
    :math:`n^{k-1}` operations for n points.

    Args:
        points: The task metrics of each solution, shape (n, k).
        reference: The reference point, worse than the solutions in every task, shape (k,).
        higher_is_better: One bool for all tasks, or one per task.

    Returns:
        A float64 scalar; 0 without points.

    Raises:
        ShapeError: If the shapes do not match.

    Example:
        Two overlapping rectangles, 3 x 1 and 1 x 2:

        >>> hypervolume(torch.tensor([[3.0, 1.0], [1.0, 2.0]]), [0.0, 0.0], True)
        tensor(4., dtype=torch.float64)

    References:
        Zitzler and Thiele: *Multiobjective Evolutionary Algorithms*, IEEE Transactions on
        Evolutionary Computation, 1999.
    """
    wide, corner = as_float64(points), as_float64(reference)
    corner = corner.to(wide.device)
    check_tasks("points", points)
    check_tasks("reference", corner, points.shape[-1])
    if points.ndim != 2 or corner.ndim != 1:
        raise ShapeError(
            "`points` must have one row per solution and `reference` one entry per task, got the "
            f"shapes {tuple(points.shape)} and {tuple(corner.shape)}."
        )
    extents = (wide - corner) * towards_better(higher_is_better, len(corner)).to(corner)
    inside = extents[(extents > 0).all(dim=1)]
    volume = _volume([tuple(row) for row in inside.tolist()])
    return placed(torch.tensor(volume, dtype=torch.float64), points.device)


def _volume(boxes: list[tuple[float, ...]]) -> float:
    """The volume of the union of boxes that all begin in the origin."""
    if not boxes:
        return 0.0
    if len(boxes[0]) == 1:
        return max(box[0] for box in boxes)
    boxes = sorted(_undominated(boxes), key=lambda box: -box[-1])
    total = 0.0
    for i, box in enumerate(boxes):
        below = boxes[i + 1][-1] if i + 1 < len(boxes) else 0.0
        if box[-1] > below:  # between these heights, exactly the first boxes are there
            total += (box[-1] - below) * _volume([b[:-1] for b in boxes[: i + 1]])
    return total


def _undominated(boxes: list[tuple[float, ...]]) -> list[tuple[float, ...]]:
    unique = list(dict.fromkeys(boxes))
    return [
        box
        for box in unique
        if not any(
            other != box and all(a >= b for a, b in zip(other, box, strict=True))
            for other in unique
        )
    ]


class Hypervolume(Narrowing):
    """The :func:`hypervolume` of all added points.

    Args:
        reference: See :func:`hypervolume`.
        higher_is_better: See :func:`hypervolume`.
        kwargs: For :class:`torchmetrics.Metric`.

    Example:
        >>> metric = Hypervolume([0.0, 0.0], True)
        >>> metric.update(torch.tensor([3.0, 1.0]))
        >>> metric.update(torch.tensor([1.0, 2.0]))
        >>> metric.compute()
        tensor(4., dtype=torch.float64)
    """

    full_state_update = False
    points: list[Tensor]

    def __init__(self, reference: Sequence[float], higher_is_better: Better, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.reference, self.better = list(reference), higher_is_better
        towards_better(higher_is_better, len(self.reference))  # one for each task, or an error
        self.add_state("points", [], dist_reduce_fx="cat")

    @override
    def update(self, points: Tensor) -> None:
        """Add one point, shape (k,), or several, shape (n, k)."""
        check_tasks("points", points, len(self.reference))
        points = as_float64(points.reshape(-1, len(self.reference)))
        self.points.append(placed(points, self.device))

    @override
    def compute(self) -> Tensor:
        """The volume; 0 before the first update."""
        # After a reduction over processes this is one tensor instead of a list.
        points = [self.points] if isinstance(self.points, Tensor) else self.points
        together = torch.cat(points) if points else torch.empty(0, len(self.reference))
        return hypervolume(together, self.reference, self.better)
