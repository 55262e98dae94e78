"""What is said of a run after its first update."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from lightning_jd.aggregators import Method
from lightning_jd.core import Report, describe_slow
from lightning_jd.engines import NamedParameters, Slow


def start_line(
    method: Method, report: Report, kind: str, named: NamedParameters, slow: Mapping[str, Slow]
) -> str:
    """Describe the rows, the parameters, how they were computed, and what is slow."""
    numbers = sum(tensor.numel() for _, tensor in named)
    ways = Counter(_way(path, kind) for path in report.paths.values()).most_common()
    line = (
        f"Jacobian descent with {method.label}: rows are {len(report.names)} "
        f"{kind.replace('_', ' x ')}, {numbers:,} parameters in {len(named)} tensors, computed by "
        + ", ".join(f"{way} ({count})" for way, count in ways)
    )
    return "\n".join([line, describe_slow(slow)]) if slow else line


def _way(path: str, kind: str) -> str:
    """What the line calls a path: that of every task is a pass of its own, and no defect."""
    return "one pass per task" if kind == "tasks" and path in ("rows", "kernel") else path
