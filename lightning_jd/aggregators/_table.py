"""The tables of methods of the documentation, from the claims of the classes.

``python -m lightning_jd.aggregators._table`` prints them.
"""

import inspect
import re
from collections.abc import Iterable
from typing import Any

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

#: Methods that compute the weights of another method in another way.
WRAPPERS = ("crmogm", "fromfeatures", "normalized", "subjacobians", "weightsevery")
#: Authors, and what follows the title: "NeurIPS 2021", "arXiv:2308.12029".
_REFERENCE = re.compile(r"References:\s+(.+?),\s+\*.+?\*,\s+(.*?(?:20\d\d|arXiv:\d+))", re.DOTALL)


def methods_table(classes: Iterable[type[Method]]) -> str:
    """Markdown, one line per method: what it does, and who published it.

    Example:
        >>> from lightning_jd.aggregators import UW
        >>> print(methods_table([UW]).splitlines()[-1].partition(" | ")[2])
        `"uw"` | Uncertainty weighting with learned log-variances $s$ | Kendall, ..., CVPR 2018 |
    """
    lines = [["Method", "Name", "What it does", "Paper"], ["---"] * 4]
    return _markdown(lines + [[*_name(cls), _summary(cls), _paper(cls)] for cls in classes])


def properties_table(classes: Iterable[type[Aggregator]] | None = None) -> str:
    """Markdown, one line per aggregator: properties, small tasks, what it needs and keeps.

    Args:
        classes: The aggregators; ``None`` is all that the package itself registers.

    Example:
        >>> from lightning_jd.aggregators import UPGrad
        >>> print(properties_table([UPGrad]).splitlines()[-1])
        | `"upgrad"` | ✓ | ✓ | ✓ | ✓ | yes | Gramian | - |
    """
    header = ["Aggregator", *(prop.value.capitalize() for prop in Property)]
    lines = [
        [*header, "Keeps small tasks", "Needs", "Keeps"],
        ["---", *(":-:" for _ in Property), ":-:", "---", "---"],
        *(_aggregator(cls) for cls in classes or _of_the_package(available("aggregators"))),
    ]
    return _markdown(lines)


def balancers_table() -> str:
    """Markdown, one line per balancer: small tasks, and what it keeps.

    Example:
        >>> print(balancers_table().splitlines()[2])
        | `"cosmos"` | no | - |
    """
    lines = [["Balancer", "Keeps small tasks", "Keeps"], ["---", ":-:", "---"]]
    found = _of_the_package(available("balancers"))
    lines += [[_name(cls)[1], _small_tasks(cls), _keeps(cls)] for cls in found]
    return _markdown(lines)


def tables() -> str:
    """The tables of methods: aggregators, methods around another one, balancers."""
    of = _of_the_package
    groups = [
        [cls for cls in of(available("aggregators")) if cls.name not in WRAPPERS],
        [cls for cls in of(available("aggregators")) if cls.name in WRAPPERS],
        of(available("balancers")),
    ]
    return "\n\n".join(map(methods_table, groups))


def _of_the_package(classes: dict[str, type[Any]]) -> list[type[Any]]:
    return [cls for cls in classes.values() if cls.__name__ in aggregators.__all__]


def _aggregator(cls: type[Aggregator]) -> list[str]:
    marks = ["✓" if prop in cls.properties else "✗" for prop in Property]
    return [_name(cls)[1], *marks, _small_tasks(cls), _needs(cls), _keeps(cls)]


def _small_tasks(cls: type[Method]) -> str:
    return {True: "yes", False: "no", None: "as wrapped"}[cls.keeps_small_tasks]


def _name(cls: type[Method]) -> list[str]:
    return [f"[{cls.__name__}](#lightning_jd.aggregators.{cls.__name__})", f'`"{cls.name}"`']


def _summary(cls: type[Method]) -> str:
    first = (inspect.getdoc(cls) or "").partition("\n")[0]
    return re.sub(r":math:`(.+?)`", r"$\1$", first).rstrip(".")


def _paper(cls: type[Method]) -> str:
    found = _REFERENCE.search(inspect.getdoc(cls) or "")
    if found is None:
        return "-"
    authors, venue = (" ".join(part.split()) for part in found.groups())
    return f"{authors}, " + re.sub(r"arXiv:(\d\d)\d+", r"arXiv 20\1", venue)


def _needs(cls: type[Method]) -> str:
    if issubclass(cls, Balancer):
        return "losses"
    needs = "Gramian" if issubclass(cls, GramianAggregator) else "rows"
    if getattr(cls, "only_norms", False):
        needs = "norms"
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
    print(tables(), properties_table(), balancers_table(), sep="\n\n")
