"""Shapes and integers of a plan, and the tensors made from them, once per device."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Shape = tuple[int, ...]
#: Owners of slices, positions of entries, or values of an index tensor.
Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_MARK = "_lightning_jd_is_constant"


class Constant:
    """Numbers of a plan, as a tensor on any device.

    Args:
        values: The numbers; they must not change.
    """

    def __init__(self, values: Ids | Mask) -> None:
        self._values = values
        self._on: dict[torch.device, Tensor] = {}

    def on(self, device: torch.device) -> Tensor:
        """The tensor on a device; copied there once."""
        found = self._on.get(device)
        if found is None:
            found = self._on[device] = torch.as_tensor(self._values, device=device)
            setattr(found, _MARK, True)
        return found


def is_constant(tensor: Tensor) -> bool:
    """Whether a tensor belongs to a plan."""
    return hasattr(tensor, _MARK)
