"""What an object of another library keeps between calls, found by comparing it with a fresh one.

Such objects keep their state in buffers that appear with the first call, and in plain attributes
beside them. So everything is looked at that has changed: what a constructor was given has not.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

#: How a value is marked whose type ``torch.load(weights_only=True)`` does not read.
_DTYPE, _DEVICE, _ARRAY = "torch.dtype", "torch.device", "numpy.ndarray"


def changes(used: nn.Module, fresh: nn.Module) -> dict[str, dict[str, Any]]:
    """What differs between an object and a fresh one, by module and attribute.

    Args:
        used: The object.
        fresh: What it was in the beginning.

    Returns:
        Types that ``torch.load(weights_only=True)`` reads. What has no such form (functions,
        objects of solvers) is left out.
    """
    found: dict[str, dict[str, Any]] = {}
    before = dict(fresh.named_modules())
    for path, module in used.named_modules():
        was = _attributes(before[path])
        for name, value in _attributes(module).items():
            encoded = _encoded(value)
            if encoded is not None and not _equal(encoded[0], _encoded(was.get(name, None))):
                found.setdefault(path, {})[name] = encoded[0]
    return found


def restored(fresh: nn.Module, kept: dict[str, dict[str, Any]]) -> nn.Module:
    """A copy of a fresh object with the changes that :func:`changes` has found."""
    copy = deepcopy(fresh)
    modules = dict(copy.named_modules())
    for path, attributes in kept.items():
        for name, value in attributes.items():
            decoded = _decoded(value)
            parameters = modules[path]._parameters
            if name in parameters:
                decoded = nn.Parameter(decoded, requires_grad=parameters[name].requires_grad)
            setattr(modules[path], name, decoded)
    return copy


def _attributes(module: nn.Module) -> dict[str, Any]:
    internal = vars(nn.Module()).keys()
    plain = {name: value for name, value in vars(module).items() if name not in internal}
    return plain | dict(module._buffers) | dict(module._parameters)


def _encoded(value: Any) -> tuple[Any] | None:
    """The value in types that can be loaded, in a tuple of one; ``None`` if it has no such form."""
    if isinstance(value, Tensor):
        return (value.detach().clone(),)
    if value is None or isinstance(value, bool | int | float | str):
        return (value,)
    if isinstance(value, torch.dtype):
        return ({_DTYPE: str(value).removeprefix("torch.")},)
    if isinstance(value, torch.device):
        return ({_DEVICE: str(value)},)
    if type(value).__name__ == "ndarray":
        return ({_ARRAY: torch.from_numpy(value.copy())},)
    if isinstance(value, tuple | list):
        parts = [_encoded(part) for part in value]
        if any(part is None for part in parts):
            return None
        return (type(value)(part[0] for part in parts if part is not None),)
    return None


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        ((kind, content),) = value.items()
        if kind == _DTYPE:
            return getattr(torch, content)
        return torch.device(content) if kind == _DEVICE else content.clone().numpy()
    if isinstance(value, tuple | list):
        return type(value)(_decoded(part) for part in value)
    return value.clone() if isinstance(value, Tensor) else value


def _equal(encoded: Any, other: tuple[Any] | None) -> bool:
    if other is None:
        return False
    (was,) = other
    if isinstance(encoded, dict) and isinstance(was, dict):
        return encoded.keys() == was.keys() and all(_equal(encoded[k], (was[k],)) for k in encoded)
    if isinstance(encoded, Tensor) or isinstance(was, Tensor):
        both = isinstance(encoded, Tensor) and isinstance(was, Tensor)
        return both and torch.equal(encoded, was) and encoded.dtype == was.dtype
    return type(encoded) is type(was) and bool(encoded == was)
