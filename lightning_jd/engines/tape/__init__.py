"""The Gramian tape: the Gramian of any autograd graph without its Jacobian."""

from lightning_jd.engines.tape._explain import Explanation, Slow, explain, slow_parameters
from lightning_jd.engines.tape._tape import Tape
from lightning_jd.engines.tape.contributions import (
    Contribution,
    OuterProduct,
    Rows,
    SharedActivations,
    cross_gramian,
    shared_cross_gramian,
)
from lightning_jd.engines.tape.rules import NotApplicableError, Site, register_rule, unregister_rule

__all__ = [
    "Contribution",
    "Explanation",
    "NotApplicableError",
    "OuterProduct",
    "Rows",
    "SharedActivations",
    "Site",
    "Slow",
    "Tape",
    "cross_gramian",
    "explain",
    "register_rule",
    "shared_cross_gramian",
    "slow_parameters",
    "unregister_rule",
]
