"""What ``iwrm`` leaves behind: a table, the curves, and a figure."""

import csv
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from examples.lab.crew import Crew
from examples.lab.report import Report, Value
from examples.lab.statistics import standard_error
from examples.lab.studies._curves import Curve, curves_of, draw_comparison
from examples.lab.studies._rates import Budget
from examples.lab.studies._run import Outcome, Run
from examples.lab.studies._settings import Setting
from examples.lab.studies._store import Runs

#: Setting to the run at the best learning rate of each seed.
Best = Mapping[Setting, Sequence[tuple[Run, Outcome]]]

_COLUMNS = {
    "method": "method",
    "area": "area",
    "error": "standard error",
    "ratio": "area / Mean's",
    "final_loss": "final loss",
    "final_error": "its standard error",
    "similarity": "similarity to SGD",
    "lr": "learning rates",
    "not_finished": "seeds that diverged",
    "steps": "steps",
}
_BUDGETS = {
    "small": "of a walk by factors of 10^(1/3), then 10^(1/6), with seed 1, kept for the "
    "other seeds unless one does far worse with it, or seed 1 has diverged just above it",
    "paper": "of the paper's sweep over 22 + 50 rates, for each seed",
}


def publish(best: Best, crew: Crew[Run, Outcome], budget: Budget, folder: Path) -> None:
    """Print the table, and write it, the curves and the figure.

    Args:
        best: The runs to compare.
        crew: Who trained them, and what else.
        budget: How the learning rates were chosen.
        folder: Where to.
    """
    run = next(iter(best.values()))[0][0]
    title = (
        f"Instance-wise risk minimisation on {run.dataset}, batches of {run.batch}, "
        f"{run.optimizer.upper() if run.optimizer == 'sgd' else 'Adam'}"
    )
    seeds = max(len(runs) for runs in best.values())
    notes = [
        f"Means over {seeds} seed(s) of {run.size} images, {run.epochs} epochs. Area: under the "
        "curve of the training loss, per step. Final loss: of the last epoch. Similarity to SGD: "
        "cosine between the update and the mean of the gradients, over the whole run. Learning "
        f"rates: the best {_BUDGETS[budget]}. Steps: of all runs of the method, also at other "
        "rates.",
        *_told(crew.failures),
    ]
    rows = compared(best)
    steps = {s.label: _steps(crew.store, s, run.device) for s in best}
    for row in rows:
        row["steps"] = steps[str(row["method"])]
        row["method"] = _called(str(row["method"]), run)
    report = Report("iwrm", title, _COLUMNS, rows, notes)
    curves = {_called(setting.label, run): curves_of(runs) for setting, runs in best.items()}
    table = write_curves(curves, folder / "curves.csv")
    figure = draw_comparison(curves, title, folder / "iwrm.png")
    report.publish(folder, table, figure)


def _called(label: str, run: Run) -> str:
    """The label of a method; the mean of the gradients is SGD with SGD only."""
    return label if run.optimizer == "sgd" else label.removesuffix(" (SGD)")


def _steps(store: Runs, setting: Setting, device: str) -> int:
    """How many training steps all runs of a setting have taken together, on a device."""
    return sum(
        len(outcome.losses)
        for run, outcome in store.items()
        if (run.aggregator, run.reg, run.device) == (setting.aggregator, setting.reg, device)
    )


def _told(failures: Mapping[Run, str]) -> list[str]:
    """One sentence per method whose runs raised."""
    by_method: dict[Setting, list[str]] = {}
    for run, what in failures.items():
        by_method.setdefault(Setting(run.aggregator, run.reg), []).append(what)
    return [
        f"{setting.label}: {len(whats)} run(s) ended with an error, the first with {whats[0]}"
        for setting, whats in by_method.items()
    ]


def compared(best: Best) -> list[dict[str, Value]]:
    """The rows of the table, those with the least area first."""
    rows = [_row(setting, runs) for setting, runs in best.items()]
    (mean,) = [row["area"] for row in rows if row["method"] == Setting("mean").label] or [None]
    for row in rows:
        area = row["area"]
        if isinstance(mean, float) and isinstance(area, float):
            row["ratio"] = area / mean
    return sorted(rows, key=lambda row: float(row["area"] or "inf"))


def _row(setting: Setting, runs: Sequence[tuple[Run, Outcome]]) -> dict[str, Value]:
    finished = [outcome for _, outcome in runs if outcome.finished]
    areas = [outcome.area for _, outcome in runs]
    row: dict[str, Value] = {
        "method": setting.label,
        "area": statistics.mean(areas) if len(finished) == len(runs) else None,
        "error": standard_error(areas),
        "lr": ", ".join(f"{run.lr:.2g}" for run, _ in runs),
        "not_finished": len(runs) - len(finished),
    }
    if finished:
        steps = -(-runs[0][0].size // runs[0][0].batch)
        final = [statistics.mean(outcome.losses[-steps:]) for outcome in finished]
        row["final_loss"], row["final_error"] = statistics.mean(final), standard_error(final)
        row["similarity"] = statistics.mean(statistics.mean(o.similarities) for o in finished)
    return row


def write_curves(curves: Mapping[str, Sequence[Curve]], path: Path) -> Path:
    """One line per method, quantity and point: mean over seeds and its standard error."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "quantity", "epoch", "mean", "standard error"])
        for label, quantities in curves.items():
            for curve in quantities:
                for epoch, mean, error in curve.points:
                    writer.writerow(
                        [label, curve.quantity, f"{epoch:g}", f"{mean:.5g}", f"{error:.3g}"]
                    )
    return path
