"""What reaches the device without a tensor of it, and what torch computes there in its own way."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._device import _device_constructors

from tests.pretended._tensor import run

aten = torch.ops.aten
_ANY = torch.library.Library("_", "IMPL")
_ATEN = torch.library.Library("aten", "IMPL")


def _create(func: Any, *args: Any, **kwargs: Any) -> Any:
    """``torch.empty(3, device="pretended")`` and all that is made of it."""
    return run(func, args, kwargs)


def _bound(operation: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: run(operation, args, kwargs)


def _pinned(empty: Callable[..., Any]) -> Callable[..., Any]:
    """Memory that a device copies to by itself is asked for with ``pin_memory=True``."""

    def pinned(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        made = empty(*args, **kwargs)
        if pin_memory:
            made.is_pinned_for_the_device = True
        return made

    return pinned


_device_constructors()  # remembers what is there now: `with torch.device(...)` knows it by identity
torch.empty = _pinned(torch.empty)
_ANY.fallback(_create, "PrivateUse1")
# Elsewhere these start from an empty tensor that grows, or (`copy_`, for ``torch.tensor``) they are
# asked where Python is not to be seen.
for _name in "copy_ eye eye.m arange arange.start arange.start_step randperm.generator".split():
    _packet, _, _overload = _name.partition(".")
    _ATEN.impl(
        _name, _bound(getattr(getattr(aten, _packet), _overload or "default")), "PrivateUse1"
    )
