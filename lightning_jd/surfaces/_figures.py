"""Figures of a run, for the loggers that take figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning_jd.errors import MissingDependencyError
from lightning_jd.metrics import ConflictSummary, PairwiseCosine, TaskWeights
from lightning_jd.surfaces._observe import Pass, direction_of, tasks_of, with_tasks


class Figures:
    """Keeps the histories of what was logged and draws them.

    Raises:
        MissingDependencyError: If matplotlib is not installed.
    """

    def __init__(self) -> None:
        try:
            import matplotlib  # noqa: F401
        except ImportError as error:
            raise MissingDependencyError.of("The figure", "matplotlib", "plot") from error
        # Every process sees the pooled Gramian: nothing has to be collected from the others.
        self._summary = ConflictSummary(sync_on_compute=False)
        self._cosines: PairwiseCosine | None = None
        self._weights: TaskWeights | None = None

    def add(self, update: Pass) -> None:
        """Add an update."""
        report = update.report
        if (
            not report.names or report.known_gramian is None
        ):  # everything was left out, or no Jacobian
            return
        device = report.gramian.device
        self._summary.to(device).update(
            report.gramian, report.known_weights, update=direction_of(report)
        )
        if (tasks := tasks_of(update)) is None:
            return
        self._cosines = with_tasks(PairwiseCosine, self._cosines, tasks.names).to(device)
        self._weights = with_tasks(TaskWeights, self._weights, tasks.names).to(device)
        self._cosines.update(report.gramian, tasks.names)
        if tasks.weights is not None:
            self._weights.update(tasks.weights, tasks.names)

    def send(self, loggers: Sequence[Any], step: int) -> None:
        """Draw what there is, and hand it to every logger that takes figures."""
        takers = [take for logger in loggers if (take := _taker(logger)) is not None]
        if not takers or self._summary.update_count == 0:
            return
        for name, figure in self._draw().items():
            for take in takers:
                take(f"jd/{name}", figure, step)

    def _draw(self) -> dict[str, Any]:
        # Not through pyplot, which would keep every figure of the run alive.
        from matplotlib.figure import Figure

        history = Figure(figsize=(12.6, 5.8), layout="constrained")
        self._summary.plot(ax=list(history.subplots(2, 3).flat))
        figures = {"history": history}
        if self._cosines is not None:
            side = min(max(0.62 * len(self._cosines.names), 2.6), 9.0) + 2
            figures["cosines"] = Figure(figsize=(side + 0.6, side), layout="constrained")
            self._cosines.plot(ax=figures["cosines"].add_subplot())
        if self._weights is not None and self._weights.update_count:
            figures["weights"] = Figure(figsize=(6.4, 3.6), layout="constrained")
            self._weights.plot(ax=figures["weights"].add_subplot())
        return figures


def _taker(logger: Any) -> Any:
    """A function of tag, figure and step, or ``None`` if the logger takes no figures."""
    if hasattr(logger, "log_image"):  # Weights & Biases
        return lambda tag, figure, step: logger.log_image(tag, [figure], step=step)
    if hasattr(logger.experiment, "add_figure"):  # TensorBoard
        return lambda tag, figure, step: logger.experiment.add_figure(
            tag, figure, step, close=False
        )
    return None
