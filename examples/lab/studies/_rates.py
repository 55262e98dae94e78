"""The learning rates of a setting: which are tried, and the runs at the best."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from examples.lab.studies._run import Outcome, Run
from examples.lab.studies._search import (
    COARSE,
    GRID,
    best_exponent,
    learning_rate,
    paper_sweep,
)

Budget = Literal["small", "paper"]
#: Trains a run, perhaps against the losses of a rival.
Trained = Callable[[Run, Sequence[float] | None], Outcome]

#: Where the walk over learning rates 10^(k/12) begins: the methods scale their updates
#: differently (two of them add gradients up instead of averaging). It ends where it is best.
_STARTS = {
    "pcgrad": -28,
    "graddrop": -28,
    "nashmtl": -20,
    "imtlg": -12,
    "cagrad": -12,
    "mgda": -4,
    "alignedmtl": -4,
}
_USUAL_START = -8
#: 1e-3, its usual rate: Adam divides by the size of its gradients, so that methods do not differ.
_ADAM_START = -36
_HALF = COARSE // 2
#: A seed whose area is so many times that of the first seed, at its rate, tries smaller rates.
_UNLUCKY = 1.5


def best_runs(
    first: Run, seeds: int, budget: Budget, trained: Trained
) -> list[tuple[Run, Outcome]]:
    """The run at the best learning rate of each seed.

    The paper's budget sweeps 72 rates for every seed. The small one walks over the coarse grid
    with the first seed, tries half a step to both sides of the best, and keeps the rate for the
    other seeds. One that does far worse with it takes smaller ones, as long as they are better; and
    if the first seed has diverged half a step above, which is a matter of luck, the others try
    larger ones, as long as they are better.

    Args:
        first: The setting; learning rate and seed are replaced.
        seeds: The seeds are 1, 2, ... up to this.
        budget: How much to try.
        trained: Trains a run.
    """
    found: list[tuple[Run, Outcome]] = []
    exponent, climbs = _start_of(first), False
    for seed in range(1, seeds + 1):
        rates = Rates(replace(first, seed=seed), trained, gives_up=budget == "small")
        if budget == "paper":
            lr = paper_sweep(rates)
        else:
            if seed == 1:
                exponent = best_exponent(rates.at_exponent, start=exponent, halvings=1)
                above = rates.tried.get(learning_rate(exponent + _HALF))
                climbs = above is not None and above.end == "diverged"
            k = exponent
            if found and rates.at_exponent(k) > _UNLUCKY * found[0][1].area:
                k = _followed(rates, k, -_HALF, until=_UNLUCKY * found[0][1].area)
            elif found and climbs:
                k = _followed(rates, k, _HALF)
            lr = learning_rate(k)
        found.append((replace(first, seed=seed, lr=lr), rates.tried[lr]))
    return found


def _start_of(run: Run) -> int:
    """Where the walk over learning rates begins."""
    if run.optimizer == "adam":
        return _ADAM_START
    return _STARTS.get(run.aggregator, _USUAL_START)


def _followed(rates: "Rates", k: int, step: int, until: float = 0.0) -> int:
    """The exponent at which the area is low enough, or stops to fall, on the way from k."""
    area = rates.at_exponent(k)
    while area > until and GRID[0] < k < GRID[-1]:
        following = rates.at_exponent(k + step)
        if area < float("inf") and following >= area:
            break
        k, area = k + step, following
    return k


class Rates:
    """The area under the loss of a setting and seed, as a function of its learning rate.

    Args:
        setting: Everything but the learning rate.
        trained: Trains a run.
        gives_up: Whether a run may end early because a better rate is known.
    """

    def __init__(self, setting: Run, trained: Trained, *, gives_up: bool) -> None:
        self._setting, self._trained, self._gives_up = setting, trained, gives_up
        self.tried: dict[float, Outcome] = {}

    def __call__(self, lr: float) -> float:
        if lr in self.tried:
            return self.tried[lr].area
        finished = [outcome for outcome in self.tried.values() if outcome.finished]
        rival = min(finished, key=lambda outcome: outcome.area, default=None)
        losses = rival.losses if rival is not None and self._gives_up else None
        self.tried[lr] = self._trained(replace(self._setting, lr=lr), losses)
        return self.tried[lr].area

    def at_exponent(self, k: int) -> float:
        """The area for the rate 10^(k/12)."""
        return self(learning_rate(k))
