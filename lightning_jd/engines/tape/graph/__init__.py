"""The autograd graph below the losses, as data."""

from lightning_jd.engines._reach import LEAF
from lightning_jd.engines.tape.graph._constants import Constant, is_constant
from lightning_jd.engines.tape.graph._differentiate import gradients_of, local_vjp, run_engine
from lightning_jd.engines.tape.graph._node_arguments import (
    READERS,
    Indices,
    Reader,
    any_hooked,
    is_hooked,
    read_indices,
    reader,
    signed,
    table_changed,
    table_version,
)
from lightning_jd.engines.tape.graph._order import lowest, parents_first, reaching_of
from lightning_jd.engines.tape.graph._placement import RESHAPES, VIEWS, Placement, overlap, place
from lightning_jd.engines.tape.graph._records import (
    FOREIGN,
    NESTED,
    Edge,
    Graph,
    Record,
    holds_functions,
    records_of,
    walk,
)
from lightning_jd.engines.tape.graph._types import Ids, Shape

__all__ = [
    "FOREIGN",
    "LEAF",
    "NESTED",
    "READERS",
    "RESHAPES",
    "VIEWS",
    "Constant",
    "Edge",
    "Graph",
    "Ids",
    "Indices",
    "Placement",
    "Reader",
    "Record",
    "Shape",
    "any_hooked",
    "gradients_of",
    "holds_functions",
    "is_constant",
    "is_hooked",
    "local_vjp",
    "lowest",
    "overlap",
    "parents_first",
    "place",
    "reaching_of",
    "read_indices",
    "reader",
    "records_of",
    "run_engine",
    "signed",
    "table_changed",
    "table_version",
    "walk",
]
