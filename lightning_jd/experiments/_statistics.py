"""Means over seeds, and how sure they are."""

import statistics
from collections.abc import Sequence


def standard_error(values: Sequence[float]) -> float | None:
    r"""Estimated standard error of the mean, :math:`s / \sqrt n`, s the sample deviation.

    ``None`` if it cannot be estimated: a single value, or an infinite one.

    Example:
        >>> standard_error([1.0, 2.0, 3.0])
        0.5773502691896258
    """
    if len(values) < 2 or float("inf") in values:
        return None
    return float(statistics.stdev(values) / len(values) ** 0.5)


def smooth_mean(curves: Sequence[Sequence[float]], window: int = 16) -> list[float]:
    """Mean over the curves, then over the last ``window`` steps.

    Example:
        >>> smooth_mean([[1.0, 3.0, 5.0], [3.0, 5.0, 7.0]], window=2)
        [2.0, 3.0, 5.0]
    """
    mean = [statistics.mean(values) for values in zip(*curves, strict=True)]
    return [statistics.mean(mean[max(0, i + 1 - window) : i + 1]) for i in range(len(mean))]
