"""The tables of methods of the documentation, from the claims of the classes.

``python -m lightning_jd.aggregators._table`` prints them.
"""

from collections.abc import Iterable

from lightning_jd import aggregators
from lightning_jd.aggregators import (
    Aggregator,
    Balancer,
    GramianAggregator,
    Method,
    Property,
    available,
)
from lightning_jd.aggregators._memory import Stateful
from lightning_jd.aggregators._random import OwnGenerator


def properties_table(classes: Iterable[type[Aggregator]] | None = None) -> str:
    """Markdown, one line per aggregator: properties, small tasks, what it needs and keeps.

    Args:
        classes: The aggregators; ``None`` is all that the package itself registers.

    Example:
        >>> from lightning_jd.aggregators import UPGrad
        >>> print(properties_table([UPGrad]).splitlines()[-1])
        | [UPGrad](upgrad.md) | `"upgrad"` | ✓ | ✓ | ✓ | ✓ | yes | Gramian | - |
    """
    header = ["Aggregator", "Name", *(prop.value.capitalize() for prop in Property)]
    lines = [
        [*header, "Keeps small tasks", "Needs", "Keeps"],
        ["---", "---", *(":-:" for _ in Property), ":-:", "---", "---"],
        *(_aggregator(cls) for cls in classes or _of_the_package(available("aggregators"))),
    ]
    return _markdown(lines)


def balancers_table() -> str:
    """Markdown, one line per balancer: small tasks, and what it keeps.

    Example:
        >>> print(balancers_table().splitlines()[2])
        | [DWA](dwa.md) | `"dwa"` | no | by task |
    """
    lines = [["Balancer", "Name", "Keeps small tasks", "Keeps"], ["---", "---", ":-:", "---"]]
    found = _of_the_package(available("balancers"))
    lines += [[*_name(cls), _small_tasks(cls), _keeps(cls)] for cls in found]
    return _markdown(lines)


def _of_the_package(classes: dict[str, type]) -> list[type]:
    return [cls for cls in classes.values() if cls.__name__ in aggregators.__all__]


def _aggregator(cls: type[Aggregator]) -> list[str]:
    marks = ["✓" if prop in cls.properties else "✗" for prop in Property]
    return [*_name(cls), *marks, _small_tasks(cls), _needs(cls), _keeps(cls)]


def _small_tasks(cls: type[Method]) -> str:
    return {True: "yes", False: "no", None: "as wrapped"}[cls.keeps_small_tasks]


def _name(cls: type[Method]) -> list[str]:
    return [f"[{cls.__name__}]({cls.name}.md)", f'`"{cls.name}"`']


def _needs(cls: type[Method]) -> str:
    if issubclass(cls, Balancer):
        return "losses"
    needs = "Gramian" if issubclass(cls, GramianAggregator) else "rows"
    if cls.halves:
        needs += " of two samples"
    return f"{needs}, losses" if cls.uses_values else needs


def _keeps(cls: type[Method]) -> str:
    kept = []
    if issubclass(cls, Stateful):
        kept.append("by task" if issubclass(cls, GramianAggregator | Balancer) else "rows by task")
    if issubclass(cls, OwnGenerator):
        kept.append("random stream")
    return ", ".join(kept) or "-"


def _markdown(lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    print(properties_table(), balancers_table(), sep="\n\n")
