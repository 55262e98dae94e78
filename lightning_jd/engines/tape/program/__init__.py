"""Records what a step does with tensors, and replays it as two flat lists of operations."""

from lightning_jd.engines.tape.program._code import Program
from lightning_jd.engines.tape.program._recorder import Recorder, UnrecordableError

__all__ = ["Program", "Recorder", "UnrecordableError"]
