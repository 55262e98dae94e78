"""One step: passes over a graph, as its plan says."""

from lightning_jd.engines.tape.run._compiled import Compiled, Replay
from lightning_jd.engines.tape.run._experience import Experience, experience_of
from lightning_jd.engines.tape.run._freeing import can_free, is_light
from lightning_jd.engines.tape.run._gramian_sum import Collector, Ledger, Visitor
from lightning_jd.engines.tape.run._loop import ROWS, Loop, loop_over_tasks
from lightning_jd.engines.tape.run._record import can_compile, record
from lightning_jd.engines.tape.run._request import Request
from lightning_jd.engines.tape.run._run import Recording

__all__ = [
    "ROWS",
    "Collector",
    "Compiled",
    "Experience",
    "Ledger",
    "Loop",
    "Recording",
    "Replay",
    "Request",
    "Visitor",
    "can_compile",
    "can_free",
    "experience_of",
    "is_light",
    "loop_over_tasks",
    "record",
]
