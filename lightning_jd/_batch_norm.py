"""GroupNorm in the place of BatchNorm, which mixes the instances of a batch."""

from __future__ import annotations

from torch import nn
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
