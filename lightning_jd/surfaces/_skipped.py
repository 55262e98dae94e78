"""What ``nonfinite="skip"`` leaves out is counted, and said."""

from __future__ import annotations

import warnings

from lightning_jd.core import Pool, Report
from lightning_jd.errors import NonFiniteError


class Skipped:
    """Looks at every update of a fit for objectives that were left out of it.

    Args:
        total: How many there were before.

    Attributes:
        total: How many there were so far, over all processes.
    """

    def __init__(self, total: int = 0) -> None:
        self.total = total
        self._warned = False
        self._start_epoch()

    def add(self, report: Report, kind: str, place: str) -> None:
        """Count what was left out of an update, and warn of the first, with its place in words."""
        self._steps += 1
        self._trained_steps += bool(report.names)
        self._here += len(report.skipped)
        self.total += len(report.skipped)
        if kind == "tasks":
            self._trained.update(report.names)
            self._left_out.update(dict.fromkeys(report.skipped))
        if report.skipped and not self._warned:
            self._warned = True
            shown = ", ".join(map(repr, report.skipped[:5]))
            more = f" and {len(report.skipped) - 5} more" if report.skipped[5:] else ""
            _warn(
                f"In {place}, {shown}{more} of the objectives were NaN or infinite, and "
                "nonfinite='skip' dropped them. This warning appears once; `skipped` of the "
                "callback counts them, and log=True logs the count as jd/skipped."
            )

    def end_epoch(self, epoch: int) -> None:
        """Look back at an epoch.

        Raises:
            NonFiniteError: If everything was left out.
        """
        steps, here, trained_steps = self._steps, self._here, self._trained_steps
        never = [name for name in self._left_out if name not in self._trained]
        self._start_epoch()
        if here and not trained_steps:
            raise NonFiniteError(
                f"At least one objective must be finite, got NaN or infinity for all {here} in the "
                f"{steps} steps of epoch {epoch}: nonfinite='skip' dropped everything, and nothing "
                "was trained. Check the inputs, the loss and the learning rate; nonfinite='raise' "
                "stops at the first one."
            )
        if never:
            _warn(
                f"In epoch {epoch}, {', '.join(map(repr, never))} was NaN or infinite in every "
                "step. nonfinite='skip' dropped it each time, so it was not trained."
            )

    def _start_epoch(self) -> None:
        self._steps = self._trained_steps = self._here = 0
        self._trained: set[str] = set()
        self._left_out: dict[str, None] = {}  # in the order of their appearance


def _warn(text: str) -> None:
    if Pool().rank == 0:  # all processes have the same report
        warnings.warn(text, RuntimeWarning, stacklevel=2)
