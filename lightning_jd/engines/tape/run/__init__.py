"""One step: passes over a graph, as its plan says."""

from lightning_jd.engines.tape.run._freeing import can_free, is_light
from lightning_jd.engines.tape.run._ledger import Collector, Ledger, Visitor
from lightning_jd.engines.tape.run._loop import MAX_LOOP_NUMBERS, Loop, loop_over_tasks
from lightning_jd.engines.tape.run._plan_runner import PlanRunner
from lightning_jd.engines.tape.run._request import Check, Request, TapeOptions
from lightning_jd.engines.tape.run._trace import can_trace, trace
from lightning_jd.engines.tape.run._traced_step import Replay

__all__ = [
    "MAX_LOOP_NUMBERS",
    "Check",
    "Collector",
    "Ledger",
    "Loop",
    "PlanRunner",
    "Replay",
    "Request",
    "TapeOptions",
    "Visitor",
    "can_free",
    "can_trace",
    "is_light",
    "loop_over_tasks",
    "trace",
]
