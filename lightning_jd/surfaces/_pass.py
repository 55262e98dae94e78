"""One update of a batch, of which there may be several in manual optimization, and its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from lightning_jd.core import Report
from lightning_jd.engines import NamedParameters, Objectives

_OPTIMIZER = "optimizer_"


class Seen(NamedTuple):
    """The losses of the last batch on this process, detached.

    Attributes:
        kind: ``"tasks"``, ``"instances"``, ``"instances_tasks"`` or ``"ranks"``.
        names: Their names.
        values: Their values, shape (m,); empty if they are unknown.
        shown: The scalar that loggers show.
    """

    kind: str
    names: tuple[str, ...]
    values: Tensor
    shown: Tensor

    @classmethod
    def of(cls, objectives: Objectives) -> Seen:
        """Detach the losses."""
        values, names = objectives.values(), objectives.names
        if not objectives.has_values:
            values, names = values[:0], ()
        return cls(objectives.kind, names, values, objectives.shown())


class Pass(NamedTuple):
    """One update.

    Attributes:
        name: What to call it: the name that ``manual_backward`` was given, or the optimizer whose
            parameters were differentiated, or its number. Empty if it is the only one.
        report: What it was made of.
        seen: Its losses on this process.
    """

    name: str
    report: Report
    seen: Seen


def told_apart(updates: Sequence[Pass]) -> list[Pass]:
    """The updates of a batch, each with a name of its own if there are several."""
    names = [update.name for update in updates]
    if len(names) == 1 and names[0].startswith(_OPTIMIZER):
        names = [""]
    elif len(set(names)) < len(names) or "" in names[:-1] + names[1:]:
        names = [f"backward_{i}" for i in range(len(names))]
    return [update._replace(name=name) for update, name in zip(updates, names, strict=True)]


def optimizer_of(named: NamedParameters, trainer: Any) -> str:
    """The only optimizer that updates some parameters; empty if there is none, or several."""
    wanted = {id(tensor) for _, tensor in named}
    if len(trainer.optimizers) == 1:
        return f"{_OPTIMIZER}0"
    for i, optimizer in enumerate(trainer.optimizers):
        if wanted <= {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}:
            return f"{_OPTIMIZER}{i}"
    return ""
