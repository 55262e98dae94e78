"""Draw the stages of the tape: ``python docs/figures/tape.py`` writes tape.png beside this file."""

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

#: Folder, what it answers, and which stages of the story it tells.
STAGES = [
    ("graph/", "What is below the losses?", "walk"),
    ("owners/", "Whose slice is it?", "owners"),
    ("contributions/", "What does a layer add to G, and to Jᵀw?", "products"),
    ("rules/", "How does an operation make a contribution?", "rules"),
    ("plan/", "Which way does each parameter take?", "decided once per graph"),
    ("program/", "Which operations on tensors is that?", "recorded once per plan"),
    ("run/", "The pass, the Gramian, the gradients", "every step"),
]
TOP = [
    ("_way.py", "loop, program or rules?"),
    ("_step.py", "carries it out"),
    ("_certificate.py", "is it right?"),
    ("_tape.py", "Tape"),
]


def main() -> None:
    figure, axes = plt.subplots(figsize=(9, 5.6))
    axes.set(xlim=(0, 9), ylim=(0, 8.2))
    axes.axis("off")
    for k, (folder, question, when) in enumerate(STAGES):
        y = 7.2 - 0.92 * k
        box = FancyBboxPatch(
            (0.2, y), 5.9, 0.62, boxstyle="round,pad=0.04", fc="#eef3fa", ec="#3b6ea5"
        )
        axes.add_patch(box)
        axes.text(0.4, y + 0.31, folder, va="center", family="monospace", weight="bold")
        axes.text(2.25, y + 0.31, question, va="center", size=9)
        axes.text(6.3, y + 0.31, when, va="center", size=9, color="#555555", style="italic")
        if k:
            axes.annotate("", (3.1, y + 0.68), (3.1, y + 0.9), arrowprops={"arrowstyle": "->"})
    for k, (file, says) in enumerate(TOP):
        axes.text(0.2 + 2.25 * k, 0.95, file, family="monospace", weight="bold", size=9)
        axes.text(0.2 + 2.25 * k, 0.62, says, size=9)
    axes.text(0.2, 0.1, "Each folder imports only from those above it; a test holds that.", size=9)
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=150, bbox_inches="tight")


if __name__ == "__main__":
    main()
