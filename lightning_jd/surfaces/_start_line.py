"""What is said of a run after its first update."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tqdm import tqdm  # type: ignore[import-untyped]  # a dependency of Lightning

from lightning_jd.aggregators import Method
from lightning_jd.core import Report, describe_slow
from lightning_jd.engines import NamedParameters, Slow

_KINDS = {
    "instances": "example",
    "instances_tasks": "example and task",
    "ranks": "process",
    "tasks": "task",
}
#: The first word of a path, in words.
_WAYS = {
    "rule": "one backward pass for all objectives",
    "computed": "one backward pass for all objectives",
    "plain": "not aggregated",
    "rows": "one backward pass per {}",
    "kernel": "one backward pass per {}",
    "local": "one backward pass per {}",
    "jacobian": "gradients of every {} are stored",
    "features": "one backward pass, with weights from the features",
    "balanced": "one backward pass",
    "unreached": "no loss depends on them",
}
#: Between two messages, progress bars are cleared, and drawn anew behind the second.
bars_cleared = tqdm.external_write_mode


def start_line(
    method: Method, report: Report, kind: str, named: NamedParameters, slow: Mapping[str, Slow]
) -> str:
    """Describe the objectives, the parameters, how they were computed, and what is slow.

    Example:
        >>> import torch
        >>> from lightning_jd import backward, resolve
        >>> layer = torch.nn.Linear(3, 2)
        >>> report = backward(layer(torch.ones(4, 3)).sum(dim=1), layer)
        >>> named = list(layer.named_parameters())
        >>> print(start_line(resolve("upgrad"), report, "instances", named, {}))
        Jacobian descent with upgrad: 4 objectives, one per example; 8 parameters in 2 tensors.
        2 tensors: one backward pass for all objectives.
    """
    numbers, unit = sum(tensor.numel() for _, tensor in named), _KINDS[kind]
    ways = Counter(_way(path, unit) for path in report.paths.values()).most_common()
    lines = [
        f"Jacobian descent with {method.label}: {len(report.names)} objectives, one per {unit}; "
        f"{numbers:,} parameters in {len(named)} tensors.",
        " ".join(f"{count} tensor{'s'[: count > 1]}: {way}." for way, count in ways),
    ]
    return "\n".join([*lines, describe_slow(slow)] if slow else lines)


def _way(path: str, unit: str) -> str:
    """What the line calls a path of :class:`~lightning_jd.core.Report`."""
    how = path.partition(" ")[0]
    return _WAYS.get(how, how).format(unit)
