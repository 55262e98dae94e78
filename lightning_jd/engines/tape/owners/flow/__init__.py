"""How owners flow from the outputs of an operation to its inputs, operation by operation.

An operation that is missing here makes the tape slower (it probes the graph in every step), never
wrong. Each entry is a proof: *if* the entries of the outputs have these owners, *then* entry q of
an input only matters to outputs of the owner that is returned for q.
"""

from lightning_jd.engines.tape.owners.flow import (  # noqa: F401  # they register themselves
    _indices,
    _mixing,
    _selections,
    _views,
)
from lightning_jd.engines.tape.owners.flow._registry import (
    REDUCED,
    Crossing,
    UnprovenError,
    flow_of,
    is_known,
    register_flow,
    unregister_flow,
)
from lightning_jd.engines.tape.owners.flow._table import is_elementwise

__all__ = [
    "REDUCED",
    "Crossing",
    "UnprovenError",
    "flow_of",
    "is_elementwise",
    "is_known",
    "register_flow",
    "unregister_flow",
]
