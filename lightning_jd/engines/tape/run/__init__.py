"""One step: passes over a graph, as its plan says."""

from lightning_jd.engines.tape.run._ledger import Collector, Ledger
from lightning_jd.engines.tape.run._loop import MAX_LOOP_NUMBERS, Loop, loop_over_tasks
from lightning_jd.engines.tape.run._request import Check, Request, TapeOptions
from lightning_jd.engines.tape.run._run_plan import run_plan
from lightning_jd.engines.tape.run._trace import Replay, can_trace, trace

__all__ = [
    "MAX_LOOP_NUMBERS",
    "Check",
    "Collector",
    "Ledger",
    "Loop",
    "Replay",
    "Request",
    "TapeOptions",
    "can_trace",
    "loop_over_tasks",
    "run_plan",
    "trace",
]
