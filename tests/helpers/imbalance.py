"""Whether a method gives up tasks with short gradients: the column "keeps small tasks"."""

from collections.abc import Callable

import torch
from torch import Tensor

from lightning_jd.aggregators import (
    Aggregator,
    Balancer,
    GramianAggregator,
    Method,
    Step,
)
from lightning_jd.aggregators._halves import SUFFIXES

SPAN = 1e3  # the longest gradient in units of the shortest
STEPS = 200  # for methods that learn their weights
OPPOSED = -0.01  # a cosine of a gradient with the update from which on its task gets worse


def conflicting(m: int, turn: int, conflict: float = 0.5) -> Tensor:
    """m gradients, each against all others, of norms from 1 to SPAN; turn: which one is shortest.

    Their cosines are ``-conflict / (m - 1)``. The sum of the unit gradients helps every one of
    them: its product with each is ``1 - conflict``.
    """
    cosine = -conflict / (m - 1)
    unit = (1 - cosine) * torch.eye(m, dtype=torch.float64) + cosine
    norms = torch.logspace(0, torch.tensor(SPAN).log10().item(), m, dtype=torch.float64)
    return norms.roll(turn)[:, None] * torch.linalg.cholesky(unit)


def worst_cosine(method: Method, J: Tensor) -> float:
    """The least cosine of a gradient with the update after so many equal steps.

    Losses are proportional to gradients, as they are if a task is measured in other units.
    """
    m = len(J)
    names = tuple(f"task {i}" for i in range(m))
    values = J.norm(dim=1)
    rows = J
    if method.halves:
        rows, values = torch.cat([J, J]), torch.cat([values, values])
        names = tuple(name + end for end in SUFFIXES for name in names)
    step = Step(names, values)
    worst = 1.0
    steps = STEPS if method.state_dict() else 1
    for t in range(steps):
        d = _direction(method.turn(), rows, step)
        if t >= steps // 2:
            worst = min(worst, float((J @ d / J.norm(dim=1)).min() / d.norm().clamp(min=1e-300)))
    return worst


def _direction(method: Method, J: Tensor, step: Step) -> Tensor:
    if isinstance(method, Balancer):
        return method.weigh(step) @ J
    if isinstance(method, GramianAggregator):
        return method.weigh(J @ J.T, step) @ J
    assert isinstance(method, Aggregator)
    return method.combine(J, step)


def keeps_small_tasks(make: Callable[[int], Method]) -> bool:
    """Whether no gradient is opposed, whichever of two to five is the shortest."""
    return all(
        worst_cosine(make(m), conflicting(m, turn, conflict)) >= OPPOSED
        for m in (2, 3, 4, 5)
        for turn in (0, 1, m - 1)
        for conflict in (0.5, 0.9)
    )
