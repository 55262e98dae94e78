"""Rules: the gradients of all objectives at one operation, from the cotangents of one pass."""

from lightning_jd.engines.tape.rules import (  # noqa: F401  # they register themselves
    _broadcast,
    _convolution,
    _embedding,
    _linear,
    _normalisation,
    _recurrent,
)
from lightning_jd.engines.tape.rules._broadcast import sum_of_broadcast
from lightning_jd.engines.tape.rules._registry import (
    NotApplicableError,
    Site,
    bias_slot_of,
    is_for_tasks,
    outputs_of,
    register_rule,
    rule_of,
    saved_names_of,
    unregister_rule,
)

__all__ = [
    "NotApplicableError",
    "Site",
    "bias_slot_of",
    "is_for_tasks",
    "outputs_of",
    "register_rule",
    "rule_of",
    "saved_names_of",
    "sum_of_broadcast",
    "unregister_rule",
]
