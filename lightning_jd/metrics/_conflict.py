"""How often do two objectives disagree? The function and the metric."""

from typing import Any, ClassVar

from torch import Tensor
from typing_extensions import override

from lightning_jd.metrics._reported import Reported, read
from lightning_jd.metrics._streaming import StreamingMetric
from lightning_jd.metrics._unit import TOLERANCE, check_tolerance, share_below, unit_gramian


def conflict_rate(gramian: Tensor, *, tolerance: float = TOLERANCE) -> Tensor:
    """Fraction of the pairs of objectives whose gradients conflict.

    Args:
        gramian: The Gramian, shape ``(m, m)``; for m = 1 the result is 0.
        tolerance: Pairs conflict if their cosine is below ``-tolerance``.

    Example:
        >>> import torch
        >>> conflict_rate(torch.tensor([[1.0, -0.5], [-0.5, 1.0]]))
        tensor(1.)
    """
    check_tolerance(tolerance)
    return rate_of_cosines(unit_gramian(gramian)[0], tolerance)


def rate_of_cosines(C: Tensor, tolerance: float) -> Tensor:
    """Share of the pairs off the diagonal of C below ``-tolerance``; the diagonal never is."""
    m = len(C)
    return share_below(C.flatten(), tolerance) * (m / max(m - 1, 1))


class ConflictRate(StreamingMetric):
    """Running :func:`conflict_rate` over the pairs of all updates and processes.

    Args:
        tolerance: See :func:`conflict_rate`.
        kwargs: For :class:`torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = ConflictRate()
        >>> metric.update(torch.tensor([[1.0, -0.5], [-0.5, 1.0]]))  # one pair, in conflict
        >>> metric.update(torch.eye(3))  # three pairs, none in conflict
        >>> metric.compute()
        tensor(0.2500)
    """

    higher_is_better = False
    title: ClassVar[str] = "Pairs of objectives in conflict"
    ylabel: ClassVar[str] = "share of the pairs"
    limits: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __init__(self, tolerance: float = TOLERANCE, **kwargs: Any) -> None:
        super().__init__(["conflict rate"], **kwargs)
        check_tolerance(tolerance)
        self.tolerance = tolerance

    @override
    def update(self, gramian: Tensor | Reported, weights: Tensor | None = None) -> None:
        """Add the Gramian (m, m) of one update, or its report; the weights are ignored."""
        G, _ = read(gramian)
        m = len(G)
        rate = conflict_rate(G, tolerance=self.tolerance)
        self.record(rate.reshape(1), weight=m * (m - 1) / 2)

    @override
    def compute(self) -> Tensor:
        """The fraction over all pairs; 0 if there was no pair."""
        rate = super().compute()
        return rate if self.update_count == 0 else rate.nan_to_num(nan=0.0)
