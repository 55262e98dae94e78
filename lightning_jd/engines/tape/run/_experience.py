"""What steps with one plan have shown, which the plan alone does not tell."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from lightning_jd.engines.tape.plan import Plan

if TYPE_CHECKING:
    from lightning_jd.engines.tape.run._compiled import Compiled


@dataclass
class Experience:
    """Filled on the way.

    Attributes:
        refused: Whether the rule for a use did not apply, by position.
        steps: How many steps had this plan.
        order: The operations in the order in which the rules were asked: a program adds up in the
            same order, so that it rounds as they do.
        compiled: The program for it, once there is one.
        is_unrecordable: There is none, because something depends on the values of tensors.
    """

    refused: dict[int, bool] = field(default_factory=dict)
    steps: int = 0
    order: list[int] = field(default_factory=list)
    compiled: Compiled | None = None
    is_unrecordable: bool = False


_experiences: WeakKeyDictionary[Plan, Experience] = WeakKeyDictionary()


def experience_of(plan: Plan) -> Experience:
    """What is known of a plan; forgotten with it."""
    found = _experiences.get(plan)
    if found is None:
        found = _experiences[plan] = Experience()
    return found
