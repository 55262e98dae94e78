"""The Gramian tape: the Gramian of any autograd graph without its Jacobian."""

from lightning_jd.engines.tape._explain import Explanation, Slow, explain, slow_parameters
from lightning_jd.engines.tape._tape import Tape
from lightning_jd.engines.tape.contributions import (
    Budget,
    Contribution,
    Factors,
    OuterProduct,
    Rows,
    Settled,
)
from lightning_jd.engines.tape.rules import NotApplicableError, Site, register_rule, unregister_rule

__all__ = [
    "Budget",
    "Contribution",
    "Explanation",
    "Factors",
    "NotApplicableError",
    "OuterProduct",
    "Rows",
    "Settled",
    "Site",
    "Slow",
    "Tape",
    "explain",
    "register_rule",
    "slow_parameters",
    "unregister_rule",
]
