"""The methods that the paper compares."""

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

from examples.lab.statistics import power_of_ten
from lightning_jd.aggregators import Aggregator, Method, available, resolve
from lightning_jd.errors import ArgumentError, UnknownNameError

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
        name = available("aggregators")[self.aggregator].__name__
        if self.aggregator == "mean":
            return f"{name} (SGD)"
        return name if self.reg is None else f"{name}, reg {power_of_ten(self.reg)}"

    def built(self, seed: int) -> Aggregator:
        """The aggregator; methods that draw random numbers draw those of the seed.

        Example:
            >>> Setting("rgw").built(seed=3).seed
            3
        """
        options = {} if self.reg is None else {"reg": self.reg}
        aggregator = seeded(self.aggregator, seed, **options)
        assert isinstance(aggregator, Aggregator)
        return aggregator


def seeded(name: str, seed: int, **options: Any) -> Method:
    """A method by name; one that draws random numbers draws those of the seed.

    Example:
        >>> seeded("rlw", seed=3).seed
        3
    """
    known = available()
    if "seed" in signature(known[name]).parameters:
        options["seed"] = seed
    return resolve({"name": name} | options)


def check_epochs(epochs: int | None) -> None:
    """Raise unless there is at least one epoch, or it was left out."""
    if epochs is not None and epochs < 1:
        raise ArgumentError(f"`epochs` must be at least 1, got {epochs}.")


def names_of(aggregators: Sequence[str] | str) -> tuple[str, ...]:
    """The names in a list, or the only one.

    Example:
        >>> names_of("mean"), names_of(["mean", "upgrad"])
        (('mean',), ('mean', 'upgrad'))
    """
    return (aggregators,) if isinstance(aggregators, str) else tuple(aggregators)


def settings_of(aggregators: Sequence[str], regs: Sequence[float]) -> list[Setting]:
    """The settings to compare: UPGrad at each regularisation, DualProj at the first.

    Raises:
        UnknownNameError: If there is no such aggregator.
    """
    found: list[Setting] = []
    for name in aggregators:
        if name not in available("aggregators"):
            raise UnknownNameError.of("aggregators", name, available("aggregators"))
        if name == "upgrad":
            found += [Setting(name, reg) for reg in regs]
        else:
            found.append(Setting(name, regs[0] if name == "dualproj" else None))
    return found
