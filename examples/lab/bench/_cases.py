"""The lines of ``bench engines`` and ``bench scale``, and what each must reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from examples.lab.work.language import language_model
from examples.lab.work.networks import (
    Work,
    cnn,
    cnn_tasks,
    mlp,
    mlp_tasks,
    resnet18,
    transformer,
)
from examples.lab.work.paper import INPUT_SHAPES
from examples.lab.work.physics import physics


@dataclass(frozen=True)
class Case:
    """One line of the table.

    Attributes:
        name: For the table and for ``--cases``.
        build: Makes the work.
        aggregator: What computes the weights.
        must: The largest allowed ratio to the plain mean-loss step.
        low_memory_must: The same for the peak memory of the low-memory mode, where it is promised.
        skips: Engines that are not run because a single step takes minutes.
    """

    name: str
    build: Callable[[], Work]
    aggregator: str
    must: float
    low_memory_must: float | None = None
    skips: tuple[str, ...] = ()


def _paper_cases() -> list[Case]:
    targets = (("mean", 1.15), ("upgrad", 1.30))
    return [
        Case(f"{name}-{aggregator}", partial(cnn, name), aggregator, must, 1.25)
        for aggregator, must in targets
        for name in INPUT_SHAPES
    ]


CASES: dict[str, Case] = {
    case.name: case
    for case in [
        *_paper_cases(),
        *(
            Case(f"cifar10-{batch}", partial(cnn, "cifar10", batch), "upgrad", 1.5)
            for batch in (128, 256)
        ),
        Case("mlp-64", lambda: mlp(64), "upgrad", 1.15),
        Case("mlp-256", lambda: mlp(256), "mean", 1.2),
        *(
            Case(f"mlp-512-{batch}", partial(mlp, batch, 512), "upgrad", must)
            for batch, must in ((128, 2.3), (256, 3.2))
        ),
        Case("resnet18", resnet18, "upgrad", 1.25, skips=("autojac",)),
        *(
            Case(
                f"transformer-short-{batch}",
                partial(transformer, batch, 128, 3, 32),
                "upgrad",
                must,
                skips=("autojac",),
            )
            for batch, must in ((32, 1.7), (128, 2.1))
        ),
        Case("transformer", transformer, "upgrad", 1.35),
        Case("transformer-256", lambda: transformer(256), "upgrad", 1.6, skips=("autojac", "loop")),
        Case("mlp-8-tasks", lambda: mlp_tasks(8), "upgrad", 2.5),
        Case("mlp-40-tasks", lambda: mlp_tasks(40), "upgrad", 7.0),
        Case("cnn-8-tasks", lambda: cnn_tasks(8), "upgrad", 5.0),
        Case("physics", physics, "upgrad", 1.15),
    ]
}

#: Too heavy for a table of many lines: ``python -m examples.lab bench scale``.
SCALE: dict[str, Case] = {
    "gpt2-small": Case("gpt2-small", language_model, "upgrad", must=1.4),
}
