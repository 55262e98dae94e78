"""Between a device and the host: one copy there, which is the only wait, and one back, without."""

import math

import numpy as np
import torch
from torch import Tensor

from lightning_jd.linalg._arrays import Array
from lightning_jd.linalg._checks import check_finite
from lightning_jd.linalg._scaling import to_finite


def together(gramian: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Both where the host can read them: by one copy, hence one wait, if they are on a device."""
    if gramian.is_cpu or other.is_cpu:
        return gramian, other
    joined = torch.cat([gramian.detach().flatten(), other.detach().flatten()]).cpu()
    first, second = joined.split([gramian.numel(), other.numel()])
    return first.reshape(gramian.shape), second.reshape(other.shape)


def to_array(name: str, tensor: Tensor) -> Array:
    """A float64 array on the host, if it is finite."""
    tensor = tensor.detach()
    if not tensor.is_cpu:
        tensor = tensor.cpu()  # the host waits
    if tensor.dtype == torch.bfloat16:  # unknown to NumPy
        tensor = tensor.float()
    array: Array = tensor.numpy().astype(np.float64, copy=False)
    if not math.isfinite(np.add.reduce(array, axis=None)):  # a sum may overflow: look closer
        check_finite(name, tensor)
    return array


def to_tensor(weights: Array, gramian: Tensor, *, bounded: bool) -> Tensor:
    """The weights in the dtype and on the device of the Gramian; the host does not wait.

    Args:
        weights: In float64.
        gramian: Of the dtype and on the device to return.
        bounded: Whether no weight can be beyond the range of float32.
    """
    if bounded and gramian.dtype == torch.float32:
        converted = torch.from_numpy(weights.astype(np.float32))  # cheaper than to convert in torch
    elif bounded and gramian.dtype == torch.float64:
        converted = torch.from_numpy(weights)
    else:
        converted = to_finite(torch.from_numpy(weights), gramian.dtype)
    return converted if gramian.is_cpu else converted.to(gramian.device, non_blocking=True)
