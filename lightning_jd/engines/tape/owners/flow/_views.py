"""Operations that only move or copy entries."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from lightning_jd.engines.tape.graph import RESHAPES, reader
from lightning_jd.engines.tape.owners._owners import Owners
from lightning_jd.engines.tape.owners.flow._registry import (
    REDUCED,
    Crossing,
    Flowed,
    UnprovenError,
    prove,
    register_flow,
)


@register_flow(*RESHAPES)
def reshape(at: Crossing) -> Sequence[Flowed]:
    """The row-major order of the entries stays."""
    prove(prod(at.input) == prod(at.shapes[0]))
    return [at.only.reshaped(at.shapes[0], at.input)]


@register_flow("TransposeBackward0", "TransposeBackward1", facts=reader("dim0", "dim1"))
def transpose(at: Crossing) -> Sequence[Flowed]:
    """Two axes swap."""
    first, second = at.dim(0, at.rank), at.dim(1, at.rank)
    return [at.only.moved({first: second, second: first}.get(at.axis, at.axis))]


@register_flow("TBackward0", "TBackward1")
def matrix_transpose(at: Crossing) -> Sequence[Flowed]:
    """The two axes of a matrix swap; a vector stays."""
    return [at.only.moved(1 - at.axis) if at.rank == 2 else at.only]


@register_flow("PermuteBackward0", facts=reader("dims"))
def permute(at: Crossing) -> Sequence[Flowed]:
    """Axis j of the output is axis dims[j] of the input."""
    return [at.only.moved(at.dims(0, at.rank)[at.axis])]


@register_flow("RepeatBackward0")
def repeat(at: Crossing) -> Sequence[Flowed]:
    """Slice q of the input is slice q, q + n, q + 2n, ... of the output."""
    axis = at.axis - (at.rank - len(at.input))
    if axis < 0:
        return [REDUCED]
    copies = at.only.ids.reshape(-1, at.input[axis])
    if np.array_equal(copies, np.broadcast_to(copies[:1], copies.shape)):
        return [Owners(axis, copies[0].copy())]
    return [REDUCED]


@register_flow(
    "AsStridedBackward0", "AsStridedBackward1", facts=reader("size", "stride", "storage_offset")
)
def as_strided(at: Crossing) -> Sequence[Flowed]:
    """Where the input has its entries in memory is not known: that takes an experiment."""
    raise UnprovenError


@register_flow("BackwardHookFunctionBackward", "RegisterPostBackwardFunctionBackward")
def passed_on(at: Crossing) -> Sequence[Flowed]:
    """What a hook of a module, or ``fully_shard``, puts around it: output k is input k."""
    prove(len(at.owners) == len(at.inputs))
    prove(all(shape in (None, own) for shape, own in zip(at.inputs, at.shapes, strict=True)))
    return list(at.owners)


@register_flow("FlipBackward0", facts=reader("dims"))
def flip(at: Crossing) -> Sequence[Flowed]:
    """Some axes are reversed."""
    reverse = at.axis in at.dims(0, at.rank)
    return [at.only.taken(slice(None, None, -1)) if reverse else at.only]


@register_flow("RollBackward0", facts=reader("dims", "shifts"))
def roll(at: Crossing) -> Sequence[Flowed]:
    """Some axes are rotated: slice q of the input is slice q + shift of the output."""
    dims, shifts = at.dims(0, at.rank), at.facts[1]
    prove(bool(dims) and isinstance(shifts, tuple))  # without axes, the flat tensor is rotated
    shift = sum(shift for dim, shift in zip(dims, shifts, strict=True) if dim == at.axis)
    return [Owners(at.axis, np.roll(at.only.ids, -shift))]
