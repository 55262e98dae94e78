"""Which objective owns which slice of every result on the way."""

from lightning_jd.engines.tape.owners._arrangement import Arrangement
from lightning_jd.engines.tape.owners._evidence import Crossed, Evidence, Questions
from lightning_jd.engines.tape.owners._owners import Owners, alone, in_order, joined

__all__ = [
    "Arrangement",
    "Crossed",
    "Evidence",
    "Owners",
    "Questions",
    "alone",
    "in_order",
    "joined",
]
