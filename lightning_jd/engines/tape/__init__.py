"""The Gramian tape: the Gramian of any autograd graph without its Jacobian."""

from lightning_jd.engines.tape._compare import random_vector
from lightning_jd.engines.tape._explain import (
    Explanation,
    OnePass,
    Slow,
    explain,
    one_pass_of,
    slow_parameters,
)
from lightning_jd.engines.tape._extracts import Parts, Projections, SquaredNorms
from lightning_jd.engines.tape._rounding import Rounding
from lightning_jd.engines.tape._tape import Tape
from lightning_jd.engines.tape.contributions import (
    Budget,
    Contribution,
    Factors,
    OuterProduct,
    Rows,
    Settled,
)
from lightning_jd.engines.tape.graph import reader
from lightning_jd.engines.tape.owners import Owners
from lightning_jd.engines.tape.owners.flow import (
    REDUCED,
    Crossing,
    UnprovenError,
    register_flow,
    unregister_flow,
)
from lightning_jd.engines.tape.plan import Certificates
from lightning_jd.engines.tape.rules import NotApplicableError, Site, register_rule, unregister_rule
from lightning_jd.engines.tape.run import TapeOptions

__all__ = [
    "REDUCED",
    "Budget",
    "Certificates",
    "Contribution",
    "Crossing",
    "Explanation",
    "Factors",
    "NotApplicableError",
    "OnePass",
    "OuterProduct",
    "Owners",
    "Parts",
    "Projections",
    "Rounding",
    "Rows",
    "Settled",
    "Site",
    "Slow",
    "SquaredNorms",
    "Tape",
    "TapeOptions",
    "UnprovenError",
    "explain",
    "one_pass_of",
    "random_vector",
    "reader",
    "register_flow",
    "register_rule",
    "slow_parameters",
    "unregister_flow",
    "unregister_rule",
]
