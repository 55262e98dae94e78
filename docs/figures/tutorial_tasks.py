"""The figures and the table of the tutorial on several tasks, from the code of its page.

    python docs/figures/tutorial_tasks.py

Three learning rates, three seeds, two methods: some minutes on one core.
"""

import logging
import re
import sys
import tempfile
from pathlib import Path
from statistics import mean, stdev

import matplotlib

matplotlib.use("Agg")
import lightning.pytorch as L
import torch
from matplotlib import pyplot as plt

from lightning_jd import JacobianDescent

HERE = Path(__file__).parent
RATES, SEEDS = (0.0003, 0.001, 0.003), (0, 1, 2)
COLOURS = {"sum": "tab:gray", "upgrad": "tab:green"}


def code_of_the_page() -> None:
    """Save the files of the tutorial where they can be imported."""
    folder = Path(tempfile.mkdtemp())
    page = (HERE.parent / "tutorials" / "tasks.md").read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        if named := re.match(r"# file: (\S+)\n", block):
            (folder / named[1]).write_text(block, encoding="utf-8")
    sys.path.insert(0, str(folder))


def draw_data() -> None:
    from data import test

    images, left, right, total = next(iter(test))
    figure, axes = plt.subplots(1, 8, figsize=(9, 1.3), layout="constrained")
    for i, axis in enumerate(axes):
        axis.imshow(images[i, 0], cmap="gray_r")
        axis.set_title(f"{left[i]}, {right[i]}, {total[i]:.0f}", fontsize=9)
        axis.axis("off")
    figure.savefig(HERE / "tutorial_tasks_data.png", dpi=150)


def results(method: str, rate: float, seed: int) -> dict[str, float]:
    from model import fit_and_test
    from split import SplitTasks

    class AtRate(SplitTasks):
        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=rate)

    L.seed_everything(seed, verbose=False)
    return fit_and_test(AtRate(), [JacobianDescent(method, params="shared")])


def draw_rates(found: dict[tuple[str, float], list[dict[str, float]]]) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(9.5, 2.8), layout="constrained")
    for axis, task in zip(axes, ("left", "right", "sum"), strict=True):
        for method, colour in COLOURS.items():
            runs = [[each[task] for each in found[method, rate]] for rate in RATES]
            axis.errorbar(
                RATES,
                [mean(values) for values in runs],
                yerr=[stdev(values) for values in runs],
                color=colour,
                marker="o",
                capsize=3,
                label=method,
            )
        axis.set(xscale="log", xlabel="learning rate", title=f"{task} digit: accuracy")
        axis.set_xticks(RATES, [f"{rate:g}" for rate in RATES])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[2].set_title("sum: mean absolute error")
    axes[0].legend(frameon=False)
    figure.savefig(HERE / "tutorial_tasks_rates.png", dpi=150)


if __name__ == "__main__":
    code_of_the_page()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    draw_data()
    found = {(m, r): [results(m, r, s) for s in SEEDS] for r in RATES for m in COLOURS}
    draw_rates(found)
    print("| learning rate | method | left | right | sum off by |\n|--:|---|--:|--:|--:|")
    for (method, rate), runs in found.items():
        left, right, total = (mean(run[task] for run in runs) for task in ("left", "right", "sum"))
        print(f"| {rate:g} | `{method}` | {left:.0%} | {right:.0%} | {total:.2f} |")
