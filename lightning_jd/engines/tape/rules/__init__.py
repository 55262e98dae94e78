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
    RuleEntry,
    Site,
    register_rule,
    rule_at,
    unregister_rule,
)

__all__ = [
    "NotApplicableError",
    "RuleEntry",
    "Site",
    "register_rule",
    "rule_at",
    "sum_of_broadcast",
    "unregister_rule",
]
