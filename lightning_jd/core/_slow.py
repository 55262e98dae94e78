"""Says which parameters cost one pass per instance, and what to do about it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from lightning_jd.engines import Slow


def describe_slow(slow: Mapping[str, Slow], shown: int = 3) -> str:
    """Name the slow parameters, the reason, the factor and the remedy; empty if there are none.

    Example:
        >>> describe_slow({"w": Slow("Custom", 8, "one pass per row", "write a rule")})
        'Slow: w (one pass per row, so 8 passes a step instead of 1). Faster: write a rule.'
    """
    names: dict[Slow, list[str]] = {}
    for name, why in slow.items():
        names.setdefault(why, []).append(name)
    lines = []
    for reason, found in names.items():
        more = f" and {len(found) - shown} more" if found[shown:] else ""
        line = (
            f"Slow: {', '.join(found[:shown])}{more} ({reason.why}, so {reason.passes} passes a "
            "step instead of 1)."
        )
        lines.append(f"{line} Faster: {reason.remedy}." if reason.remedy else line)
    return "\n".join(lines)


def warn_slow(slow: Mapping[str, Slow], *, stacklevel: int) -> None:
    """Warn of whole passes that are repeated although a remedy is known.

    The text is the same in every step, so that Python shows it once.
    """
    remedies = {why.operation: why for why in slow.values() if why.is_mixed and why.remedy}
    for operation, why in remedies.items():
        warnings.warn(
            f"One backward pass per instance, instead of one for all: {operation} mixes the "
            f"instances or hides them. Faster: {why.remedy}.",
            RuntimeWarning,
            stacklevel=stacklevel + 1,
        )
