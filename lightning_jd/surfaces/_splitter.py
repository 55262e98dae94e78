"""Splits the scalars of a fit, and gives their terms the names that the module logs them under."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor

from lightning_jd.engines import Objectives, Split, split_loss
from lightning_jd.surfaces._patch import Patch


class Splitter:
    """Remembers the names of terms, so that the values are compared with the log only once.

    Args:
        split: How scalars are split; ``None`` if they are not.
    """

    def __init__(self, split: Split | None) -> None:
        self._split = split
        self._logged: dict[str, Tensor | float] = {}
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}

    @contextmanager
    def listening(self, module: Any) -> Iterator[None]:
        """Note the numbers that a module logs meanwhile, where that may be of use."""
        self._logged = {}
        if self._split is None or self._split.by == "instances" or self._split.names is not None:
            yield
            return
        patch = Patch(module, {"log": self._log})
        try:
            yield
        finally:
            patch.undo()

    def _log(
        self, original: Callable[..., Any], name: str, value: Any, *more: Any, **kw: Any
    ) -> Any:
        if isinstance(value, Tensor) and value.numel() == 1:
            self._logged[name] = value.detach()  # not read yet: an accelerator would have to wait
        elif isinstance(value, (int, float)):
            self._logged[name] = value
        return original(name, value, *more, **kw)

    def __call__(self, loss: Any) -> Objectives | None:
        """The objectives in a scalar; ``None`` if it is no scalar, or is not to be split."""
        if self._split is None or not isinstance(loss, Tensor) or loss.numel() != 1:
            return None
        objectives = split_loss(loss, self._split)
        if objectives.kind != "tasks" or not self._logged:
            return objectives
        if objectives.names not in self._names:
            logged = {name: float(value) for name, value in self._logged.items()}
            self._names[objectives.names] = split_loss(loss, self._split, logged).names
        return replace(objectives, names=self._names[objectives.names])
