"""Which objective owns which slice of every result on the way."""

from lightning_jd.engines.tape.owners._arrangement import Arrangement
from lightning_jd.engines.tape.owners._evidence import Crossed, DataUse, Evidence
from lightning_jd.engines.tape.owners._owners import Owners, in_order, joined, single_owner

__all__ = [
    "Arrangement",
    "Crossed",
    "DataUse",
    "Evidence",
    "Owners",
    "in_order",
    "joined",
    "single_owner",
]
