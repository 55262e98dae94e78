"""Draws the figure of docs/distributed.md: the three kinds of rows, and who multiplies what.

python docs/figures/distributed.py
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

COLORS = ("#4477aa", "#ee8866")  # of the two processes
BOTH = "#998899"
WIDTH, HEIGHT = 4.0, 0.42  # of a row


def row(axes: Axes, x: float, y: float, color: str, label: str = "", width: float = WIDTH) -> None:
    axes.add_patch(Rectangle((x, y), width, HEIGHT * 0.86, color=color, lw=0))
    if label:
        axes.text(x - 0.12, y + 0.18, label, ha="right", va="center", fontsize=8)


def panel(axes: Axes, title: str, subtitle: str) -> None:
    axes.set_xlim(-1.5, 11.6)
    axes.set_ylim(-0.3, 4.5)
    axes.axis("off")
    axes.set_title(title, fontsize=11, loc="left", pad=16)
    axes.text(0, 1.0, subtitle, transform=axes.transAxes, fontsize=8.5, va="bottom")


def arrow(axes: Axes, text: str) -> None:
    axes.annotate("", (5.9, 1.8), (4.3, 1.8), arrowprops={"arrowstyle": "->", "lw": 1.4})
    axes.text(5.1, 2.0, text, ha="center", fontsize=8.5)


def processes(axes: Axes, names: tuple[list[str], list[str]]) -> None:
    """The rows of the first process above those of the second."""
    for rank, (own, top) in enumerate(zip(names, (3.3, 1.2), strict=True)):
        axes.text(0, top + 0.62, f"process {rank}", color=COLORS[rank], fontsize=9)
        for i, name in enumerate(own):
            row(axes, 0, top - i * HEIGHT, COLORS[rank], name)


def jacobian(axes: Axes, rows: list[tuple[str, str]]) -> None:
    """Rows of J, each with its colour and name."""
    top = 1.8 + HEIGHT * (len(rows) - 1) / 2
    axes.text(7.4, top + 0.62, "J", fontsize=10, style="italic")
    for i, (name, color) in enumerate(rows):
        row(axes, 7.4, top - i * HEIGHT, color, name)


def main() -> None:
    """Save the figure beside this file."""
    figure, ((tasks, instances), (ranks, exchange)) = plt.subplots(2, 2, figsize=(10.4, 5.6))
    panel(tasks, "tasks", "a row per task: the mean over the processes that have it")
    processes(tasks, (["depth", "edges"], ["depth"]))
    arrow(tasks, "mean")
    jacobian(tasks, [("depth", BOTH), ("edges", COLORS[0])])

    panel(instances, "instances", "a row per sample: those of all processes, uneven or none")
    processes(instances, (["0", "1", "2"], ["3", "4"]))
    arrow(instances, "union")
    jacobian(instances, [(str(i), COLORS[i > 2]) for i in range(5)])

    panel(ranks, "ranks", "a row per process: the gradient of its scalar loss")
    processes(ranks, ([""], [""]))
    arrow(ranks, "union")
    jacobian(ranks, [("0", COLORS[0]), ("1", COLORS[1])])

    panel(
        exchange, "how it is pooled", "each process gets some columns of all rows, and multiplies"
    )
    for rank in range(2):
        top = 3.3 - 2.1 * rank
        exchange.text(0, top + 0.62, f"process {rank}", color=COLORS[rank], fontsize=9)
        for i in range(4):
            row(exchange, rank * WIDTH / 2, top - i * 0.8 * HEIGHT, COLORS[i > 1], width=WIDTH / 2)
        outline = Rectangle(
            (0, top - 2.4 * HEIGHT), WIDTH, 3.3 * HEIGHT, fill=False, ls=":", lw=0.8
        )
        exchange.add_patch(outline)
        exchange.text(4.3, top - 0.3, f"$J_{{:,{rank}}}\\,J_{{:,{rank}}}^\\top$", fontsize=11)
    exchange.annotate("", (8.0, 1.9), (6.6, 1.9), arrowprops={"arrowstyle": "->", "lw": 1.4})
    exchange.text(7.3, 2.1, "sum", ha="center", fontsize=8.5)
    exchange.text(8.3, 1.75, "$G = J J^\\top$", fontsize=12)
    figure.tight_layout(h_pad=2.0)
    figure.savefig(Path(__file__).parent / "distributed.png", dpi=110)


if __name__ == "__main__":
    main()
