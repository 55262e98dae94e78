"""What the callback logs: the metrics of the last update, the weights and losses of the tasks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from lightning_jd.errors import ArgumentError
from lightning_jd.surfaces._figures import Figures
from lightning_jd.surfaces._observe import Pass, StepClock, is_due, steps_done, values_of
from lightning_jd.surfaces._session import Session

PREFIX = "jd/"
_IN_THE_BAR = ("similarity_to_mean", "conflict_rate", "violation_share")


class Monitor:
    """Logs the conflict between the objectives while they are trained.

    Values go straight to the loggers of the Trainer and to ``trainer.callback_metrics``, where
    checkpoints and early stopping find them. Between the steps that are logged nothing is computed;
    a step that is logged costs one small copy from the device.

    Args:
        every_n_steps: Log every so many steps; ``None`` for the Trainer's ``log_every_n_steps``.
        per_group: With ``groups``, the metrics of each group of parameters too.
        progress_bar: Show similarity to the mean, conflict rate and harmed objectives in the bar.
        figures: Draw the history and, for tasks, the matrix of cosines and the weights at the end
            of each epoch, for loggers that take figures (TensorBoard, Weights & Biases).
        stationarity: The distance to weak stationarity too, at the price of a small program that
            is solved on the host.

    Raises:
        ArgumentError: If ``every_n_steps`` is not positive.
        MissingDependencyError: If figures are wanted and matplotlib is not installed.
    """

    def __init__(
        self,
        every_n_steps: int | None = None,
        per_group: bool = False,
        progress_bar: bool = False,
        figures: bool = False,
        stationarity: bool = True,
    ) -> None:
        if every_n_steps is not None and every_n_steps < 1:
            raise ArgumentError(f"`every_n_steps` must be at least 1, got {every_n_steps}.")
        self.every_n_steps = every_n_steps
        self.per_group = per_group
        self.progress_bar = progress_bar
        self.stationarity = stationarity
        self._figures = Figures() if figures else None
        self._clock = StepClock()
        self._seen = 0
        self._has_logged = False

    @classmethod
    def of(cls, spec: bool | Mapping[str, Any]) -> Monitor | None:
        """The monitor for the argument ``log`` of the callback.

        Raises:
            ArgumentError: If a key of the mapping is no argument of this class.
        """
        if spec is False:
            return None
        try:
            return cls() if spec is True else cls(**spec)
        except TypeError as error:
            raise ArgumentError(
                "`log` must be True, False or a dict with some of 'every_n_steps', 'per_group', "
                f"'progress_bar', 'figures' and 'stationarity', got {spec!r}."
            ) from error

    def before_batch(self) -> None:
        """Start the timer."""
        self._clock.start()

    def after_batch(self, trainer: Any, module: Any, session: Session) -> None:
        """Log the update of this batch, if there was one and it is its turn."""
        fresh, self._seen = session.steps != self._seen, session.steps
        updates = session.passes()
        if not updates or not fresh:
            return
        every = trainer.log_every_n_steps if self.every_n_steps is None else self.every_n_steps
        if not is_due(trainer, every):
            return
        values: dict[str, float] = {}
        if session.settings.nonfinite == "skip":
            values["skipped"] = float(session.skipped.total)
        for update in updates:
            if update.report.names:  # else everything was left out
                values |= self._values(update)
        if not values:
            return
        self._has_logged = True
        logged = {PREFIX + name: value for name, value in values.items()}
        for logger in trainer.loggers:
            logger.log_metrics(logged, step=steps_done(trainer))
        trainer.callback_metrics.update({name: torch.tensor(v) for name, v in logged.items()})
        if self.progress_bar:
            shown = {PREFIX + name: values[name] for name in _IN_THE_BAR if name in values}
            module.log_dict(shown, prog_bar=True, logger=False, batch_size=1)
        if self._figures is not None:
            for update in updates:
                self._figures.add(update)

    def _values(self, update: Pass) -> dict[str, float]:
        """What is logged of one update; its name is in the names."""
        values = self._clock.shares(update.report) | values_of(
            update, per_group=self.per_group, stationarity=self.stationarity
        )
        if not update.name:
            return values
        return {
            name if f"/{update.name}/" in f"/{name}" else f"{update.name}/{name}": value
            for name, value in values.items()
        }

    def after_fit(self, trainer: Any) -> None:
        """Warn if the run was too short for its log."""
        if not self._has_logged and self._seen > 0 and trainer.is_global_zero:
            every = self.every_n_steps or trainer.log_every_n_steps
            warnings.warn(
                f"`log` has logged nothing: the run had {self._seen} batches, and every "
                f"{every}th step is logged. Set log={{'every_n_steps': 1}}, or "
                "`log_every_n_steps` of the Trainer.",
                RuntimeWarning,
                stacklevel=2,
            )

    def after_epoch(self, trainer: Any) -> None:
        """Give the figures to the loggers."""
        if self._figures is not None:
            self._figures.send(trainer.loggers, steps_done(trainer))
