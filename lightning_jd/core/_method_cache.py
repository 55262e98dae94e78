"""Methods that are described anew in every call, where the same object has to answer."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from lightning_jd.aggregators import AggregatorSpec, Method, resolve
from lightning_jd.aggregators._memory import Stateful
from lightning_jd.aggregators._registry import _CLASSES
from lightning_jd.errors import ArgumentError

#: Methods without a state by the name that they are registered under.
_NAMED: dict[str, Method] = {}
#: An object of another library to the method around it, which keeps its state and random stream.
_AROUND: WeakKeyDictionary[Any, Method] = WeakKeyDictionary()


def method_of_call(spec: AggregatorSpec) -> Method:
    """The method that a call asks for: the same one for the same object.

    Raises:
        ArgumentError: If it keeps a state, and a name or dict would begin with a new one each time.

    Example:
        >>> method_of_call("upgrad").name
        'upgrad'
    """
    if isinstance(spec, Method):
        return spec
    if isinstance(spec, str):
        known = _NAMED.get(spec)
        if known is not None and type(known) is _CLASSES.get(spec):  # and no newer one of that name
            return known
    if spec.__hash__ is not None and not isinstance(spec, str | type) and spec in _AROUND:
        return _AROUND[spec]
    method = resolve(spec)
    if any(isinstance(each, Stateful) for each in method.modules()):
        raise ArgumentError(
            f"{method.label} keeps a state between steps, so `aggregator` must be the same object "
            f"in every call, got {spec!r}, which would begin anew each time. Make it once, with "
            "`resolve(...)` or by its class, and pass that."
        )
    if method.state_dict():
        if method.is_foreign:
            _AROUND[spec] = method
    elif isinstance(spec, str):
        _NAMED[spec] = method
    return method
