"""One step: passes over a graph, as its plan says."""

from lightning_jd.engines.tape.run._freeing import can_free, is_light
from lightning_jd.engines.tape.run._gramian_sum import Collector, Ledger
from lightning_jd.engines.tape.run._run import Recording

__all__ = [
    "Collector",
    "Ledger",
    "Recording",
    "can_free",
    "is_light",
]
