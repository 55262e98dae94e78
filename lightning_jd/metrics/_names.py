"""Where is the objective of this name? For metrics that keep one number per task."""

from collections.abc import Sequence

from lightning_jd.errors import ArgumentError, ShapeError, UnknownNameError


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """The names as a tuple.

    Raises:
        ArgumentError: If there is none, or one twice.
    """
    if isinstance(names, str) or not names or len(set(names)) != len(names):
        raise ArgumentError(f"`names` must be different names, one per objective, got {names!r}.")
    return tuple(names)


def positions(present: Sequence[str] | None, names: tuple[str, ...], m: int) -> list[int]:
    """Where each of the m objectives of one update is among ``names``.

    Args:
        present: The names of this update, in any order; ``None`` says all of them, in order.
        names: The names of the metric.
        m: How many objectives there are in this update.

    Raises:
        UnknownNameError: If the metric does not have this name.
        ShapeError: If there are not m names.

    Example:
        >>> positions(["c", "a"], ("a", "b", "c"), 2)
        [2, 0]
    """
    present = names if present is None else present
    if len(present) != m:
        raise ShapeError(
            f"`names` must name each objective of the update ({m}), got {len(present)}: "
            f"{list(present)}. Where a task is missing, pass the names of those present."
        )
    known = {name: index for index, name in enumerate(names)}
    for name in present:
        if name not in known:
            raise UnknownNameError.of("names", name, names)
    return [known[name] for name in present]
