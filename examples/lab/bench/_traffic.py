"""What a step sends on more processes than anybody has here: computed, never measured."""

from __future__ import annotations

from collections.abc import Callable

from examples.lab.bench._layers import Kind, layers_of
from examples.lab.bench._volume import volume
from examples.lab.work.networks import Work, mlp, mlp_tasks, resnet18

PROCESSES = (2, 8, 64, 1024)
#: Name to the kind of rows, their number on each process, and the work.
WORK: dict[str, tuple[Kind, int, Callable[[], Work]]] = {
    "MLP 784-1024-1024-10, 32 instances each": ("instances", 32, lambda: mlp(32)),
    "MLP trunk with 8 tasks, 64 samples each": ("tasks", 8, lambda: mlp_tasks(8)),
    "MLP 784-1024-1024-10, ranks": ("ranks", 1, lambda: mlp(1)),
    "ResNet-18, 32 instances each": ("instances", 32, lambda: resnet18(1)),
    "ResNet-18, ranks": ("ranks", 1, lambda: resnet18(1)),
}


def traffic_table() -> str:
    """The table of docs/distributed.md, in Markdown: megabytes that a process sends in a step."""
    heads = ["work", "plain DDP", *[f"added on {R}" for R in PROCESSES]]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for name, (kind, m, build) in WORK.items():
        work = build()
        layers = layers_of(work.model, work.x, kind)
        sent = {R: volume(kind, m, layers, R) for R in PROCESSES}
        plain = sent[PROCESSES[-1]]["gradient"]
        cells = [_cell(volumes) for volumes in sent.values()]
        lines.append(f"| {name} | {_shown(plain)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(sent: dict[str, float]) -> str:
    """The sum, and what most of it is."""
    parts = {purpose: sent[purpose] for purpose in ("rows", "factors", "gramian", "weights")}
    largest = max(parts, key=parts.__getitem__)
    return f"{_shown(sum(parts.values()))} ({largest})"


def _shown(amount: float) -> str:
    return f"{amount / 1e6:,.0f}" if amount > 1e7 else f"{amount / 1e6:.2g}"
