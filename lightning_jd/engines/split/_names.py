"""Names for the terms of a sum: those that were given, that are logged, or of their operations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from torch import Tensor

#: Relative distance of two values that are called equal.
_CLOSE = 1e-5


def names_from_operations(operations: Iterable[str]) -> list[str]:
    """Names in the style of torch.nn.functional; the second of a kind gets a number.

    Example:
        >>> names_from_operations(["NllLoss", "MseLoss", "Mean", "MseLoss"])
        ['nll_loss', 'mse_loss', 'mean', 'mse_loss_2']
    """
    seen: Counter[str] = Counter()
    names = []
    for each in operations:
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", each).lower()
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return names


def names_from_log(
    names: list[str],
    values: list[Tensor | None],
    factors: list[Tensor],
    logged: Mapping[str, float],
) -> list[str]:
    """Replace names by those under which the same numbers were logged.

    A term is found by its value, or by its value times its factor, if no other term has the same.
    Of several logged numbers that are that, the first one counts: metrics are logged after losses.

    Args:
        names: The names so far.
        values: The values of the terms, where known.
        factors: Their factors.
        logged: Names and numbers.
    """
    found = list(names)
    for i, (value, factor) in enumerate(zip(values, factors, strict=True)):
        if value is None:
            continue
        number = float(value)
        candidates = [number, number * float(factor)]
        matches = [key for key, other in logged.items() if _is_one_of(other, candidates)]
        if matches:
            found[i] = matches[0]
    return found if len(set(found)) == len(found) else names


def _is_one_of(number: float, candidates: list[float]) -> bool:
    return any(abs(number - each) <= _CLOSE * max(abs(each), 1e-30) for each in candidates)
