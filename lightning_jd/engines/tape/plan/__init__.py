"""What to do with each parameter of a graph, decided once, and remembered."""

from lightning_jd.engines.tape.plan._plan import Certificates, Known, Plan, memory
from lightning_jd.engines.tape.plan._survey import Unit, Use

__all__ = ["Certificates", "Known", "Plan", "Unit", "Use", "memory"]
