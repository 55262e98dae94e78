"""The Gramian tape: the Gramian of any autograd graph without its Jacobian."""

from lightning_jd.engines.tape._tape import Tape

__all__ = ["Tape"]
