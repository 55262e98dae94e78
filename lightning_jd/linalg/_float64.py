"""float64 on the device that has it, and on the host for one that has none."""

import torch
from torch import Tensor

#: Kinds of devices that refuse tensors in float64: Metal has no such numbers.
WITHOUT_FLOAT64 = {"mps"}


def has_float64(device: torch.device) -> bool:
    """Whether a device computes in float64, however slowly.

    Example:
        >>> has_float64(torch.device("cuda")), has_float64(torch.device("mps"))
        (True, False)
    """
    return device.type not in WITHOUT_FLOAT64


def in_float64(tensor: Tensor) -> Tensor:
    """The tensor in float64: on its device, or on the host if that has none.

    Example:
        >>> in_float64(torch.ones(2))
        tensor([1., 1.], dtype=torch.float64)
    """
    # In two steps: `to` would convert on the device.
    return (tensor if has_float64(tensor.device) else tensor.cpu()).double()


def placed(tensor: Tensor, device: torch.device) -> Tensor:
    """A result in float64 on a device, in float32 if that has no float64."""
    return (tensor if has_float64(device) else tensor.float()).to(device)
