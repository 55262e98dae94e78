"""Means over seeds, how sure they are, and how to write small numbers."""

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


def power_of_ten(value: float) -> str:
    """Write a small number the short way.

    Example:
        >>> power_of_ten(1e-4), power_of_ten(2.5e-3), power_of_ten(0.0)
        ('1e-4', '2.5e-3', '0')
    """
    mantissa, exponent = f"{value:e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}" if value else "0"
