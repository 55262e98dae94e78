"""The table of properties of the documentation, from the claims of the classes.

``python -m lightning_jd.aggregators._table`` prints it.
"""

from collections.abc import Iterable

from lightning_jd import aggregators
from lightning_jd.aggregators import Aggregator, Property, available


def properties_table(classes: Iterable[type[Aggregator]] | None = None) -> str:
    """Markdown, one line per aggregator and one column per property.

    Args:
        classes: The aggregators; ``None`` is all that the package itself registers.

    Example:
        >>> from lightning_jd.aggregators import UPGrad
        >>> print(properties_table([UPGrad]).splitlines()[-1])
        | [UPGrad](upgrad.md) | `"upgrad"` | ✓ | ✓ | ✓ | ✓ |
    """
    if classes is None:
        classes = [cls for cls in available().values() if cls.__name__ in aggregators.__all__]
    header = ["Aggregator", "Name", *(prop.value.capitalize() for prop in Property)]
    lines = [header, ["---", "---", *(":-:" for _ in Property)], *map(_line, classes)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _line(cls: type[Aggregator]) -> list[str]:
    marks = ["✓" if prop in cls.properties else "✗" for prop in Property]
    return [f"[{cls.__name__}]({cls.name}.md)", f'`"{cls.name}"`', *marks]


if __name__ == "__main__":
    print(properties_table())
