"""What to do with each parameter of a kind of graph, decided once."""

from lightning_jd.engines.tape.plan._cache import KnownGraph, Standing, known_graph, standing_of
from lightning_jd.engines.tape.plan._plan import Plan
from lightning_jd.engines.tape.plan._uses import Unit, Use

__all__ = [
    "KnownGraph",
    "Plan",
    "Standing",
    "Unit",
    "Use",
    "known_graph",
    "standing_of",
]
