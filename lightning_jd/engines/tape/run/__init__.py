"""One step: passes over a graph, as its plan says."""

from lightning_jd.engines.tape.run._compiled import Compiled, Replay, can_compile, record
from lightning_jd.engines.tape.run._experience import Experience, experience_of
from lightning_jd.engines.tape.run._freeing import can_free, is_light
from lightning_jd.engines.tape.run._gramian_sum import Collector, Ledger
from lightning_jd.engines.tape.run._run import Recording

__all__ = [
    "Collector",
    "Compiled",
    "Experience",
    "Ledger",
    "Recording",
    "Replay",
    "can_compile",
    "can_free",
    "experience_of",
    "is_light",
    "record",
]
