"""How much one step on several processes sends: a function of sizes and of nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from lightning_jd.core import factors_send_less


class Matrix(NamedTuple):
    """A weight whose gradients are sums of outer products of activations and cotangents.

    Attributes:
        positions: How many outer products each row is the sum of: 1 for a vector per instance, the
            length of the sequence for a sequence per instance, the size of the batch for a task.
        inputs: The length of the activations.
        outputs: The length of the cotangents.
        bias: Entries of the bias whose gradients the same factors give.
        shared: All rows have the same activations, those of the batch, as tasks do.
    """

    positions: int
    inputs: int
    outputs: int
    bias: int = 0
    shared: bool = False

    @property
    def size(self) -> int:
        """How many numbers a row is."""
        return self.inputs * self.outputs + self.bias

    def numbers(self, m: int) -> int:
        """How many numbers the factors of m rows are."""
        if m == 0:
            return 0
        return self.positions * (self.inputs * (1 if self.shared else m) + self.outputs * m)


class Head(NamedTuple):
    """Parameters that only one task reaches: their row is its own factor.

    Attributes:
        size: How many numbers a row is.
    """

    size: int


def volume(
    kind: Literal["tasks", "instances", "ranks"],
    m: int,
    layers: Iterable[int | Matrix | Head],
    processes: int,
    *,
    itemsize: int = 4,
) -> dict[str, float]:
    """Bytes that a process sends in one step, on average over the processes, by purpose.

    Args:
        kind: What a row is.
        m: The number of rows of each process: the tasks, or its instances; 1 for ranks.
        layers: The number of entries of each parameter, or the sizes of a matrix weight, or those
            of the head of a task. The positions of a matrix weight are those of one instance, or of
            the whole batch of a process for tasks.
        processes: The number of processes.
        itemsize: Bytes per number.

    Returns:
        ``"rows"`` and ``"factors"``, of which each layer takes the smaller one; ``"gramian"`` and
        ``"weights"``; and ``"gradient"``, which is what DistributedDataParallel sends in ordinary
        training, and here too.

    Example:
        >>> sent = volume("tasks", 2, [1000], processes=4)
        >>> {purpose: int(amount) for purpose, amount in sent.items()}
        {'rows': 6000, 'factors': 0, 'gramian': 24, 'weights': 6, 'gradient': 6000}
    """
    R = processes
    rows = factors = n = 0
    for layer in layers:
        size = layer if isinstance(layer, int) else layer.size
        n += size
        if isinstance(layer, Matrix) and kind != "ranks":
            matrix = layer._replace(shared=kind == "tasks")
            if factors_send_less(R * matrix.numbers(m), R * m * size, processes=R):
                factors += matrix.numbers(m)
                continue
        if isinstance(layer, Head) and factors_send_less(R * size, R * m * size, processes=R):
            factors += size
        else:
            rows += size
    total = m if kind == "tasks" else m * R
    return {
        "rows": m * rows * (R - 1) / R * itemsize,
        "factors": factors * (R - 1) / 2 * itemsize,
        "gramian": 2 * (R - 1) / R * total**2 * itemsize,
        "weights": total * (R - 1) / R * itemsize,
        "gradient": 2 * n * (R - 1) / R * itemsize,
    }
