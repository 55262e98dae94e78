"""The best learning rate of a setting, by the area under the curve of the training loss.

A learning rate is 10^(k/12), k an integer: four steps of k make one of the paper's grid.
"""

from collections.abc import Callable

COARSE = 4
#: The exponents k of the paper's 22 learning rates, from 1e-5 to 1e2 by factors of 10^(1/3).
GRID = range(-60, 25, COARSE)


def learning_rate(k: int) -> float:
    """10^(k/12).

    Example:
        >>> learning_rate(-12)
        0.1
    """
    return float(10 ** (k / 12))


def best_exponent(
    area: Callable[[int], float],
    start: int,
    *,
    step: int = COARSE,
    margin: int = 1,
    halvings: int = 2,
) -> int:
    """Walk over the grid until the best exponent has worse neighbours, then refine around it.

    Args:
        area: The area under the loss curve for an exponent; infinite if the run diverged.
        start: Where to begin; the walk takes the nearest exponent of its grid.
        step: Distance of the exponents of the walk.
        margin: How many neighbours on each side must have been tried.
        halvings: How often to halve the distance and try both neighbours again; at the second
            time from the paper's grid the factor is 10^(1/12), about 1.2.

    Returns:
        The exponent with the least area among those that were tried.

    Example:
        >>> best_exponent(lambda k: (k + 7) ** 2, start=0)
        -7
    """
    tried: dict[int, float] = {}
    grid = range(GRID[0], GRID[-1] + 1, step)
    best = min(grid, key=lambda k: abs(k - start))
    while True:
        around = [k for k in grid if abs(k - best) <= step * margin and k not in tried]
        if not around:
            break
        # Nearest first, and small rates before large ones, which cost a divergence.
        best = _try(min(around, key=lambda k: (abs(k - best), k)), area, tried)
    for _ in range(halvings):
        if step == 1:
            break  # there is nothing between two exponents
        step //= 2
        centre = best
        for k in (centre - step, centre + step):
            best = _try(k, area, tried)
    return best


def _try(k: int, area: Callable[[int], float], tried: dict[int, float]) -> int:
    """Add an exponent to those tried, and return the best of them."""
    tried[k] = area(k)
    # Of several infinite areas the smallest rate is the best: what diverges is too large.
    return min(sorted(tried), key=lambda k: tried[k])


def paper_sweep(area: Callable[[float], float]) -> float:
    """The learning rate that the paper's two stages select: 22 rates, then 50 around the best two.

    The first stage tries 1e-5 to 1e2 by factors of 10^(1/3). The second tries 50 rates, evenly
    spaced in the exponent, from the smaller of the best two divided by that factor to the larger
    multiplied by it.

    Args:
        area: The area under the loss curve for a rate; infinite if the run diverged.

    Example:
        >>> import math
        >>> tried = []
        >>> def area(lr):
        ...     tried.append(lr)
        ...     return (math.log10(lr) + 1.6) ** 2
        >>> round(math.log10(paper_sweep(area)), 2), len(tried)
        (-1.59, 72)
    """
    coarse = {k: area(learning_rate(k)) for k in GRID}
    first, second = sorted(GRID, key=lambda k: coarse[k])[:2]
    low, high = min(first, second) - COARSE, max(first, second) + COARSE
    fine = [10 ** ((low + (high - low) * i / 49) / 12) for i in range(50)]
    areas = {learning_rate(k): a for k, a in coarse.items()} | {lr: area(lr) for lr in fine}
    return min(sorted(areas), key=lambda lr: areas[lr])
