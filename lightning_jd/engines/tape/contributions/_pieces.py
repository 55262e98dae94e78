"""How large the pieces are that work is cut into, by the kind of device."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Pieces(NamedTuple):
    """Bytes.

    Attributes:
        temporary: Of a temporary matrix; above, work is cut into pieces.
        dropped: Of rows that are formed, multiplied and dropped at a time. Less than a temporary:
            memory that is given back and fetched again has to be cleared by the operating system.
        lean: The same as temporary where memory counts more than time.
        patches: Of the patches of images that are laid out at a time.
        blocks: Into how many blocks of rows a symmetric product is cut at most, of which about
            half are computed. (Not bytes.)
        launches: Multiplications that take less time than the launches of a few kernels. (Not
            bytes.)
        captured: Of the gradients of all results, which a traced step holds at the same time;
            above, they are consumed in hooks, one after the other.
    """

    temporary: int
    dropped: int
    lean: int
    patches: int
    blocks: int
    launches: int
    captured: int


#: A CPU is fastest where a piece stays in its caches.
_CPU = Pieces(
    temporary=16 << 20,
    dropped=2 << 20,
    lean=1 << 20,
    patches=4 << 20,
    blocks=8,
    launches=1 << 17,
    captured=16 << 20,
)
SMALLEST = _CPU  # where the device is not known
#: Elsewhere every piece costs the host the launch of several kernels, caches are small compared
#: with what is in flight, and only large kernels occupy the device: pieces are as large as memory
#: allows without being noticed.
_ACCELERATOR = Pieces(
    temporary=256 << 20,
    dropped=256 << 20,
    lean=32 << 20,
    patches=256 << 20,
    blocks=2,
    launches=1 << 25,
    captured=512 << 20,
)


def pieces(like: Tensor) -> Pieces:
    """Those for the device of a tensor.

    Example:
        >>> import torch
        >>> pieces(torch.ones(1)).temporary
        16777216
    """
    return _CPU if like.device.type == "cpu" else _ACCELERATOR
