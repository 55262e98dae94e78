"""Two remedies for BatchNorm, which mixes the instances of a batch: GroupNorm, or constants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from typing_extensions import override

from lightning_jd.errors import ArgumentError

#: With fewer channels than these in a group, the norm of an instance would be mostly noise.
_CHANNELS_PER_GROUP = 8


class Replaced(dict[str, tuple[_BatchNorm, nn.GroupNorm]]):
    """Name of a layer to what it was and what it is now; ``str()`` is a list."""

    @override
    def __str__(self) -> str:
        if not self:
            return "There is no BatchNorm in the model."
        return "\n".join(
            f"{name}: {type(before).__name__}({before.num_features}) -> "
            f"GroupNorm({after.num_groups}, {after.num_channels})"
            for name, (before, after) in self.items()
        )


def replace_batch_norm(model: nn.Module, groups: int = 32) -> Replaced:
    """Replace every BatchNorm of a model, in place, by a GroupNorm.

    BatchNorm in training mode normalises with the mean and variance of the batch, so that the loss
    of an instance depends on all others: the gradients of m instances take m backward passes.
    GroupNorm looks at one instance only, and all of them take one pass.

    Weights and biases (also whether they are trained), ``eps`` and the mode of each layer are kept;
    running statistics have no place in GroupNorm and are dropped. So a model that was trained with
    BatchNorm has to be trained further. Call it before an optimizer is made.

    Args:
        model: The model; ``BatchNorm1d``, ``2d``, ``3d`` and ``SyncBatchNorm`` are found at any
            depth.
        groups: The largest number of groups. There are fewer where a group would have less than
            8 channels, and one where a layer may have no positions to average over
            (``BatchNorm1d``).

    Returns:
        What was replaced: name to (before, after). Print it.

    Raises:
        ArgumentError: If ``groups`` is not positive, the model itself is a BatchNorm, or the number
            of channels of one is not known yet (lazy modules).

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU())
        >>> print(replace_batch_norm(model))
        1: BatchNorm2d(64) -> GroupNorm(8, 64)
    """
    if isinstance(groups, bool) or not isinstance(groups, int) or groups < 1:
        raise ArgumentError(f"`groups` must be a positive integer, got {groups!r}.")
    if isinstance(model, _BatchNorm):
        raise ArgumentError(
            f"`model` must contain the layers to replace, got {type(model).__name__} itself. "
            "Pass the module that it belongs to."
        )
    replaced = Replaced()
    made: dict[int, nn.GroupNorm] = {}  # a layer that is used in two places stays one layer
    for path, parent in list(model.named_modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, _BatchNorm):
                full = f"{path}.{name}" if path else name
                made[id(layer)] = made.get(id(layer)) or _group_norm(full, layer, groups)
                setattr(parent, name, made[id(layer)])
                replaced[full] = (layer, made[id(layer)])
    return replaced


def _group_norm(name: str, layer: _BatchNorm, groups: int) -> nn.GroupNorm:
    channels = layer.num_features
    if channels == 0 or any(is_lazy(parameter) for parameter in layer.parameters()):
        raise ArgumentError(
            f"Every BatchNorm must know its number of channels, but {name} is lazy. Run a batch "
            "through the model first."
        )
    most = 1 if isinstance(layer, nn.BatchNorm1d) else min(groups, channels // _CHANNELS_PER_GROUP)
    number = next(k for k in range(max(most, 1), 0, -1) if channels % k == 0)
    norm = nn.GroupNorm(number, channels, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        norm.weight, norm.bias = layer.weight, layer.bias
    return norm.train(layer.training)


@contextmanager
def frozen_batch_norm() -> Iterator[None]:
    """In this context, BatchNorm treats the statistics of the batch as constants.

    Outputs and running statistics are those of plain training. Gradients are those of the model
    with fixed mean and variance, as if each instance had no effect on them: the part of the
    gradient that passes through mean and variance is missing. So BatchNorm does not mix the
    instances, and the gradients of all of them take one backward pass.

    Run the forward pass in this context; ``JacobianDescent(batch_norm="frozen")`` does so. It
    covers ``BatchNorm1d``, ``2d`` and ``3d`` and :func:`torch.nn.functional.batch_norm`, but not
    ``SyncBatchNorm`` on several processes. It applies to all threads of the process.

    Example:
        >>> x = torch.tensor([[1.0], [3.0]], requires_grad=True)
        >>> with frozen_batch_norm():
        ...     y = nn.BatchNorm1d(1, eps=0)(x)
        >>> y.flatten().tolist(), torch.autograd.grad(y[0, 0], x)[0].flatten().tolist()
        ([-1.0, 1.0], [1.0, 0.0])
    """
    original = F.batch_norm

    def frozen(
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if training and input.numel() > input.shape[1]:  # else torch raises its own error
            with torch.no_grad():  # updates the running statistics
                _, mean, inverse = torch.native_batch_norm(
                    input, None, None, running_mean, running_var, True, momentum, eps
                )
                running_mean, running_var = mean, inverse**-2 - eps
            training = False
        return original(input, running_mean, running_var, weight, bias, training, momentum, eps)

    F.batch_norm = frozen
    try:
        yield
    finally:
        F.batch_norm = original
