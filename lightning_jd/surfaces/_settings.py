"""The arguments that all surfaces share, checked in one place."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

from lightning_jd.aggregators import Method
from lightning_jd.core import Groups
from lightning_jd.engines import Select, Split, check_select
from lightning_jd.errors import ArgumentError

RowsOption = Literal["tasks", "instances", "ranks"]
Accumulation = Literal["batch", "step"]
Nonfinite = Literal["raise", "skip"]
Memory = Literal["fast", "low"]


@dataclass(frozen=True)
class Settings:
    """How losses become an update; the arguments of :class:`~lightning_jd.JacobianDescent`.

    Raises:
        ArgumentError: If an argument is not one of its values.
    """

    aggregator: Method
    rows: RowsOption | None = None
    params: Select = "all"
    groups: Groups = None
    accumulation: Accumulation = "batch"
    nonfinite: Nonfinite = "raise"
    memory: Memory = "fast"
    check_replicas: int = 100
    split: Split | None = None

    def text(self) -> str:
        """The arguments as one would write them, without those that are as by default.

        Example:
            >>> from lightning_jd.aggregators import resolve
            >>> Settings(resolve("mean"), params="shared", split=Split("auto")).text()
            "Mean(), params='shared', split='auto'"
        """
        parts = [repr(self.aggregator)]
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if value != field.default:
                plain = value.by if isinstance(value, Split) and value == Split(value.by) else value
                parts.append(f"{field.name}={plain!r}")
        return ", ".join(parts)

    def __post_init__(self) -> None:
        choices = {
            "rows": (None, *get_args(RowsOption)),
            "accumulation": get_args(Accumulation),
            "nonfinite": get_args(Nonfinite),
            "memory": get_args(Memory),
        }
        for name, known in choices.items():
            if (value := getattr(self, name)) not in known:
                listed = ", ".join(map(repr, known))
                raise ArgumentError(f"`{name}` must be one of {listed}, got {value!r}.")
        check_select(self.params)
        if self.split is not None and self.rows == "ranks":
            raise ArgumentError(
                "`split` cannot work with rows='ranks': the scalar of a process is either split, "
                f"or one objective, got split={self.split.by!r}. Leave one of them out."
            )
        every = self.check_replicas
        if isinstance(every, bool) or not isinstance(every, int) or every < 0:
            raise ArgumentError(
                "`check_replicas` must be a number of steps, or 0 for no check at all, got "
                f"{every!r}."
            )
