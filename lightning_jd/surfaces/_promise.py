"""The first steps of a run are watched: a promise that is not kept is a warning."""

from __future__ import annotations

import warnings
from typing import Any

import torch.distributed as dist

from lightning_jd.aggregators import Aggregator, Method, Property, Step
from lightning_jd.aggregators._dualcone import scale_of_reg
from lightning_jd.report import Run, problems
from lightning_jd.surfaces._observe import Pass, values_of

STEPS = 30  # that are watched


class BrokenPromiseWarning(UserWarning):
    """A method does not do what it claims to do, or nothing at all."""


class Watch:
    """Looks at the first updates, then says once what is wrong; afterwards it costs nothing.

    Args:
        method: The method of the run.
    """

    def __init__(self, method: Method) -> None:
        self._method = method
        self._run = Run(method.label)
        self._left = STEPS if _is_first_process() else 0

    def after(self, updates: list[Pass]) -> None:
        """Look at the updates of a batch."""
        if self._left == 0 or not updates:
            return
        for update in updates:
            if update.report.names and update.report.known_gramian is not None:
                self._run.method = facts_of(self._method, update.seen.kind)
                self._run.add(STEPS - self._left, values_of(update))
        self._left -= 1
        if self._left == 0:
            for problem in problems(self._run):
                warnings.warn(
                    f"After {STEPS} steps: {problem.text()}", BrokenPromiseWarning, stacklevel=2
                )


def facts_of(method: Method, kind: str) -> dict[str, Any]:
    """What a method claims, for :func:`lightning_jd.report.problems`.

    Args:
        method: The method.
        kind: What a row is.
    """
    claims = method.properties if isinstance(method, Aggregator) else frozenset()
    facts: dict[str, Any] = {"protects": Property.NON_CONFLICTING in claims, "kind": kind}
    if (relative_to := getattr(method, "relative_to", None)) is not None:
        scale = scale_of_reg(relative_to, Step((), kind=kind))
        facts |= {"reg": getattr(method, "reg", 0.0)}
        facts |= {"relative_to": scale if isinstance(scale, str) else "task"}
    return facts


def _is_first_process() -> bool:
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0
