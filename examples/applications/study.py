"""What the applications share: runs that survive a kill, the choice of a setting, a table.

An application defines ``train``, a function of a setting and a seed that returns numbers.
Everything that it compares is a :class:`Setting`: a method and the value of what is tuned in it.
"""

import argparse
import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.axes import Axes

from examples.lab.console import progress_bar
from examples.lab.statistics import standard_error
from examples.lab.store import Store
from lightning_jd.errors import NonFiniteError


class Setting(NamedTuple):
    problem: str
    method: str
    value: float | str = "-"  # of what is tuned: a weight, a learning rate


Found = dict[str, Any]  # numbers and curves of one run; empty if it has diverged
Results = Mapping[Setting, list[Found]]  # one entry for each seed


def arguments(text: str, steps: int, data: str = "") -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=text)
    if data:
        parser.add_argument("--data", type=Path, required=True, help=data)
    parser.add_argument("--output", type=Path, required=True, help="folder of runs and figure")
    parser.add_argument("--steps", type=int, default=steps, help=f"of one run (default {steps})")
    parser.add_argument("--seeds", type=int, default=3, help="their number (default 3)")
    torch.set_num_threads(1)  # faster for networks this small
    return parser.parse_args()


def run_all(
    train: Callable[[Setting, int, int], Found],
    settings: Iterable[Setting],
    options: argparse.Namespace,
) -> Results:
    """Every setting with every seed; what is in the folder already is not run again."""
    jobs = [(setting, seed) for setting in settings for seed in range(options.seeds)]
    runs: Store[tuple[Setting, int, int], Found] = Store(
        options.output / "runs.jsonl",
        write=lambda key, found: {"run": [list(key[0]), *key[1:]], "found": found},
        read=lambda line: ((Setting(*line["run"][0]), *line["run"][1:]), line["found"]),
    )
    missing = [job for job in jobs if (*job, options.steps) not in runs]
    with progress_bar(len(jobs), done=len(jobs) - len(missing)) as start:
        for setting, seed in missing:
            start(f"{setting.problem}, {setting.method} ({setting.value}), seed {seed}")
            torch.manual_seed(seed)
            try:
                found = train(setting, seed, options.steps)
            except NonFiniteError:  # too large a step
                found = {}
            runs.add((setting, seed, options.steps), found)
    results: dict[Setting, list[Found]] = {}
    for setting, seed in jobs:
        results.setdefault(setting, []).append(runs[setting, seed, options.steps])
    return results


def choose(results: Results, score: str) -> Results:
    """For each problem and method, the value with the largest mean score over the seeds."""
    best: dict[tuple[str, str], tuple[float, Setting]] = {}
    for setting, runs in results.items():
        finished = all(score in run for run in runs)
        mean = statistics.mean(run[score] for run in runs) if finished else float("-inf")
        key = (setting.problem, setting.method)
        best[key] = max(
            best.get(key, (float("-inf"), setting)), (mean, setting), key=lambda b: b[0]
        )
    return {setting: results[setting] for _, setting in best.values()}


def mean_and_error(runs: list[Found], key: str) -> tuple[float, float]:
    values = [run.get(key, float("nan")) for run in runs]
    return statistics.mean(values), standard_error(values) or 0.0


def plot_curves(axis: Axes, results: Results, key: str, last: int) -> None:
    """One curve up to ``last`` for each setting: the mean over seeds, with standard errors."""
    for setting, runs in results.items():
        if all(key in run for run in runs):  # a run that has diverged has no curve
            curves = torch.tensor([run[key] for run in runs])
            error = curves.std(dim=0) / len(runs) ** 0.5 if len(runs) > 1 else None
            value = f" ({setting.value})" if setting.value != "-" else ""
            label, n = setting.method + value, curves.shape[1]
            x = [last * (i + 1) / n for i in range(n)]
            axis.errorbar(x, curves.mean(dim=0), error, label=label, capsize=2)
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize="small")


def print_table(results: Results, columns: Mapping[str, str], folder: Path, tuned: str) -> None:
    """Print means and standard errors as Markdown, and keep them in ``table.md``."""
    heads = ["problem", "method", tuned, *columns.values()]
    lines = [heads, ["---"] * 3 + ["--:"] * len(columns)]
    for setting, runs in results.items():
        pairs = [mean_and_error(runs, key) for key in columns]
        numbers = [f"{mean:.3g} ± {error:.1g}" for mean, error in pairs]
        lines.append([setting.problem, setting.method, str(setting.value), *numbers])
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    print(table)
    (folder / "table.md").write_text(table + "\n", encoding="utf-8")
