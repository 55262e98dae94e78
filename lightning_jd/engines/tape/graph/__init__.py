"""The autograd graph below the losses, as data."""

from lightning_jd.engines._graph import LEAF
from lightning_jd.engines.tape.graph._constants import Constant, Ids, Shape, is_constant
from lightning_jd.engines.tape.graph._differentiate import gradients_of, local_vjp, run_engine
from lightning_jd.engines.tape.graph._node_arguments import (
    READERS,
    SHOWS_HOOKS,
    Indices,
    Reader,
    any_hooked,
    may_be_hooked,
    read_indices,
    reader,
    signed,
    table_changed,
    table_version,
)
from lightning_jd.engines.tape.graph._placement import RESHAPES, VIEWS, Placement, overlap, place
from lightning_jd.engines.tape.graph._records import (
    FOREIGN,
    NESTED,
    Edge,
    Graph,
    Record,
    holds_functions,
    lowest,
    reaching_of,
    records_of,
    walk,
)

__all__ = [
    "FOREIGN",
    "LEAF",
    "NESTED",
    "READERS",
    "RESHAPES",
    "SHOWS_HOOKS",
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
    "local_vjp",
    "lowest",
    "may_be_hooked",
    "overlap",
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
