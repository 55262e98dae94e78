"""What to do with each parameter of a graph, decided once, and remembered."""

from lightning_jd.engines.tape.plan._memory import Certificates, Known, memory
from lightning_jd.engines.tape.plan._plan import Plan
from lightning_jd.engines.tape.plan._uses import Unit, Use

__all__ = ["Certificates", "Known", "Plan", "Unit", "Use", "memory"]
