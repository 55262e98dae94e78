"""The methods that the paper compares, and the learning rates of each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lightning_jd.aggregators import available
from lightning_jd.errors import UnknownNameError
from lightning_jd.experiments._run import Outcome, Run
from lightning_jd.experiments._search import (
    COARSE,
    GRID,
    best_exponent,
    learning_rate,
    paper_sweep,
)
from lightning_jd.experiments._statistics import power_of_ten
from lightning_jd.experiments._workers import Crew

Budget = Literal["small", "paper"]

#: The aggregators of the paper's table of properties, in the order of its figures.
PAPER_AGGREGATORS = (
    "mean",
    "upgrad",
    "mgda",
    "dualproj",
    "pcgrad",
    "graddrop",
    "imtlg",
    "cagrad",
    "rgw",
    "nashmtl",
    "alignedmtl",
)

#: Where the walk over learning rates 10^(k/12) begins: the methods scale their updates
#: differently (two of them add gradients up instead of averaging). It ends where it is best.
_STARTS = {"pcgrad": -28, "graddrop": -28, "mgda": -4, "nashmtl": -12, "alignedmtl": -4}
_USUAL_START = -12


@dataclass(frozen=True)
class Setting:
    """A method of the comparison.

    Args:
        aggregator: Its name.
        reg: Its regularisation; ``None`` if it has none.
    """

    aggregator: str
    reg: float | None = None

    @property
    def label(self) -> str:
        """What tables and figures call it.

        Example:
            >>> Setting("mean").label, Setting("upgrad", 1e-4).label, Setting("imtlg").label
            ('Mean (SGD)', 'UPGrad, reg 1e-4', 'IMTLG')
        """
        name = available()[self.aggregator].__name__
        if self.aggregator == "mean":
            return f"{name} (SGD)"
        return name if self.reg is None else f"{name}, reg {power_of_ten(self.reg)}"


def settings_of(aggregators: Sequence[str], regs: Sequence[float]) -> list[Setting]:
    """The settings to compare: UPGrad at each regularisation, DualProj at the first.

    Raises:
        UnknownNameError: If there is no such aggregator.
    """
    found: list[Setting] = []
    for name in aggregators:
        if name not in available():
            raise UnknownNameError.of("aggregators", name, available())
        if name == "upgrad":
            found += [Setting(name, reg) for reg in regs]
        else:
            found.append(Setting(name, regs[0] if name == "dualproj" else None))
    return found


def best_runs(first: Run, seeds: int, budget: Budget, trained: Crew) -> list[tuple[Run, Outcome]]:
    """The run at the best learning rate of each seed.

    The paper's budget sweeps 72 rates for every seed. The small one walks over the coarse grid
    with the first seed, tries half a step to both sides of the best, and keeps the rate for the
    other seeds, unless they diverge with it.

    Args:
        first: The setting; learning rate and seed are replaced.
        seeds: The seeds are 1, 2, ... up to this.
        budget: How much to try.
        trained: Trains a run.
    """
    found: list[tuple[Run, Outcome]] = []
    exponent = _STARTS.get(first.aggregator, _USUAL_START)
    for seed in range(1, seeds + 1):
        rates = Rates(replace(first, seed=seed), trained, gives_up=budget == "small")
        if budget == "paper":
            lr = paper_sweep(rates)
        else:
            if seed == 1:
                exponent = best_exponent(rates.at_exponent, start=exponent, halvings=1)
            while rates.at_exponent(exponent) == float("inf") and exponent > GRID[0]:
                exponent -= COARSE
            lr = learning_rate(exponent)
        found.append((replace(first, seed=seed, lr=lr), rates.tried[lr]))
    return found


class Rates:
    """The area under the loss of a setting and seed, as a function of its learning rate.

    Args:
        setting: Everything but the learning rate.
        trained: Trains a run.
        gives_up: Whether a run may end early because a better rate is known.
    """

    def __init__(self, setting: Run, trained: Crew, *, gives_up: bool) -> None:
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
