"""The same search for every method: learning rate, then weight decay, by the validation score."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

from examples.lab.studies._search import GRID, best_exponent, learning_rate
from examples.lab.studies.multitask._trial import Result, Trial

Trained = Callable[[Trial], Result]
_START, _STEP = -36, 6  # 10^(-36/12) = 1e-3, and a factor of 10^(1/2)


@dataclass(frozen=True)
class Budget:
    """How much is trained.

    Attributes:
        size: Training instances; 0 takes all.
        epochs: At most.
        patience: Epochs without a better validation score.
        decays: Weight decays; without one first.
        sweeps: Whether every seed tries every pair of rate and decay, from 10^-4.5 to 10^-1.5 by
            factors of 10^(1/4); else the first seed walks, and the others begin with its pair.
    """

    size: int
    epochs: int
    patience: int
    decays: tuple[float, ...]
    sweeps: bool


BUDGETS = {
    "small": Budget(10_000, 15, 4, (0.0, 1e-2, 1e-1), sweeps=False),
    "paper": Budget(0, 100, 15, (0.0, 1e-3, 1e-2, 1e-1), sweeps=True),
}


def budget_of(name: str, dataset: str) -> Budget:
    """The budget of a name for a dataset: the steps of QM9 cost so much that small is smaller.

    Example:
        >>> budget_of("small", "census").size, budget_of("small", "qm9").size
        (10000, 2048)
    """
    if (name, dataset) == ("small", "qm9"):
        return replace(BUDGETS[name], size=2048, epochs=8, patience=3)
    return BUDGETS[name]


def best_trials(
    first: Trial, seeds: int, budget: Budget, trained: Trained
) -> list[tuple[Trial, Result]]:
    """The run of each seed at the best learning rate and weight decay.

    The small budget walks over rates by factors of 10^(1/2) with the first seed and without decay,
    from 1e-3, until the best has worse neighbours; then it tries the decays at that rate. A rate
    that is luck with one seed may be ruin with another: the others take lower ones, as long as they
    are better.

    Args:
        first: The setting; rate, decay and seed are replaced.
        seeds: The seeds are 1, 2, ... up to this.
        budget: How much to try.
        trained: Trains a run.
    """
    found: list[tuple[Trial, Result]] = []
    chosen = first
    for seed in range(1, seeds + 1):
        here = replace(chosen, seed=seed)
        if budget.sweeps:
            chosen = _swept(here, budget, trained)
        elif seed == 1:
            chosen = _walked(here, budget, trained)
        trial = replace(chosen, seed=seed)
        if seed > 1 and not budget.sweeps:
            trial = _lowered(trial, trained)
        found.append((trial, trained(trial)))
    return found


def _lowered(trial: Trial, trained: Trained) -> Trial:
    """The same at the best rate on the way down to the first that is worse."""
    tried = [trial]
    for k in range(round(12 * math.log10(trial.lr)) - _STEP, GRID[0] - 1, -_STEP):
        lower = replace(trial, lr=learning_rate(k))
        tried.append(lower)
        if trained(lower).score < trained(tried[-2]).score:  # two that fail are equal: go on
            break
    return max(tried, key=lambda trial: trained(trial).score)


def _walked(first: Trial, budget: Budget, trained: Trained) -> Trial:
    plain = replace(first, weight_decay=budget.decays[0])

    def disadvantage(k: int) -> float:
        return -trained(replace(plain, lr=learning_rate(k))).score

    best = best_exponent(disadvantage, start=_START, step=_STEP, halvings=0)
    rated = replace(plain, lr=learning_rate(best))
    return max(
        [replace(rated, weight_decay=decay) for decay in budget.decays],
        key=lambda trial: trained(trial).score,
    )


def _swept(first: Trial, budget: Budget, trained: Trained) -> Trial:
    rates = [learning_rate(k) for k in range(-54, -17, 3)]
    pairs = product(rates, budget.decays)
    return max(
        [replace(first, lr=lr, weight_decay=decay) for lr, decay in pairs],
        key=lambda trial: trained(trial).score,
    )
