"""From a name, a dictionary or an object to an aggregator."""

import warnings
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from inspect import Parameter, Signature, isabstract, signature
from typing import Any, Literal, TypeVar, overload
from weakref import WeakKeyDictionary

from lightning_jd.aggregators._balancer import Balancer
from lightning_jd.aggregators._base import Aggregator, Method
from lightning_jd.aggregators._function import FromFunction
from lightning_jd.aggregators._memory import Stateful
from lightning_jd.aggregators._torchjd import adapt, comes_from_torchjd
from lightning_jd.errors import ArgumentError, UnknownNameError

_Class = TypeVar("_Class", bound=type[Method])
_CLASSES: dict[str, type[Method]] = {}

AggregatorSpec = str | Mapping[str, Any] | Method | type[Method] | Callable[..., Any]
"""Everything that :func:`resolve` turns into an aggregator or a balancer."""


def register(cls: _Class) -> _Class:
    """Class decorator that registers a method under its lower-case class name.

    A class that defines ``name`` itself is registered under that name.

    Raises:
        ArgumentError: If the class is abstract, or another class has this name.

    Example:
        >>> import torch
        >>> from lightning_jd.aggregators import GramianAggregator, register, resolve
        >>> @register
        ... class Largest(GramianAggregator):
        ...     '''Select the row with the largest norm.'''
        ...
        ...     def weights(self, gramian):
        ...         squares = gramian.diagonal()
        ...         return (squares == squares.max()).to(gramian)
        >>> resolve("largest")(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
        tensor([0., 2.])
    """
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise ArgumentError(
            "A registered aggregator must be a class derived from Aggregator or Balancer, got "
            f"{cls!r}. A function can be passed directly as an aggregator; to register a name, "
            "write a class."
        )
    if isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise ArgumentError(
            f"A registered aggregator or balancer must define {missing}, {cls.__name__} does not."
        )
    name = vars(cls).get("name") or cls.__name__.lower()
    known = _CLASSES.get(name)
    # Running the cell of a notebook again defines the same class anew: the new one counts.
    if known and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ArgumentError(
            f"The name of an aggregator must be new, got {name!r}, which is "
            f"{known.__module__}.{known.__qualname__}. Set `name` in {cls.__name__}."
        )
    cls.name = name
    _CLASSES[name] = cls
    return cls


@overload
def available(kind: Literal["all"] = "all") -> dict[str, type[Method]]: ...
@overload
def available(kind: Literal["aggregators"]) -> dict[str, type[Aggregator]]: ...
@overload
def available(kind: Literal["balancers"]) -> dict[str, type[Balancer]]: ...
def available(kind: str = "all") -> Any:
    """All registered aggregators and balancers by name, sorted (a copy).

    Args:
        kind: ``"aggregators"`` or ``"balancers"`` for these only.

    Raises:
        ArgumentError: If ``kind`` is something else.

    Example:
        >>> available()["upgrad"].__name__, available("balancers")["dwa"].__name__
        ('UPGrad', 'DWA')
    """
    kinds = {"all": Method, "aggregators": Aggregator, "balancers": Balancer}
    if kind not in kinds:
        raise ArgumentError(f"`kind` must be one of {', '.join(map(repr, kinds))}, got {kind!r}.")
    return {name: cls for name, cls in sorted(_CLASSES.items()) if issubclass(cls, kinds[kind])}


def balancers() -> dict[str, type[Balancer]]:
    """The name of 0.2 for ``available("balancers")``, until 0.4."""
    warnings.warn(
        "`balancers()` is called `available('balancers')` since 0.3, and is removed in 0.4.",
        FutureWarning,
        stacklevel=2,
    )
    return available("balancers")


def resolve(spec: AggregatorSpec) -> Method:
    """Build an aggregator or balancer from its description.

    Args:
        spec: A registered name (``"upgrad"``, or as papers write it, ``"Nash-MTL"``), a mapping
            with ``"name"`` and the arguments of its constructor (``{"name": "cagrad", "c": 0.4}``),
            or with ``"class_path"`` and ``"init_args"``, as LightningCLI writes them, an object
            (returned unchanged), a class, a ``torchjd`` Weighting or Aggregator, or a function from
            Gramians to weights.

    Raises:
        UnknownNameError: If the name is not registered; the message lists the registered names.
        ArgumentError: If the arguments do not fit the constructor, or ``spec`` is something else.

    Example:
        >>> resolve({"name": "cagrad", "c": 0.4})
        CAGrad(c=0.4, preference=None, clipped=False)
    """
    if isinstance(spec, Method):
        return _complete(spec)
    if isinstance(spec, str):
        return _build(_lookup(spec), {})
    if isinstance(spec, Mapping):
        if "class_path" in spec:
            return _by_path(spec)
        arguments = dict(spec)
        if not isinstance(name := arguments.pop("name", None), str):
            raise ArgumentError(
                f'A mapping that describes an aggregator must have a "name", got {dict(spec)}. '
                'Write for instance {"name": "cagrad", "c": 0.4}.'
            )
        return _build(_lookup(name), arguments)
    if isinstance(spec, type) and issubclass(spec, Method):
        return _build(spec, {})
    if comes_from_torchjd(spec):
        return adapt(spec)
    if callable(spec) and not isinstance(spec, type):
        return FromFunction(spec)
    if isinstance(spec, type) and issubclass(spec, Callable):  # type: ignore[arg-type]
        raise ArgumentError(
            f"`aggregator` must be an object, got the class {spec.__name__}. Call it: "
            f"{spec.__name__}()."
        )
    raise ArgumentError(
        "`aggregator` must be a name, a mapping with a name, an Aggregator or Balancer (object or "
        f"class), an object of torchjd or a function from Gramians to weights, got {spec!r}."
    )


#: The method of a registered class, and the method around an object of another library, which keeps
#: its state and random stream.
_methods: WeakKeyDictionary[Any, Method] = WeakKeyDictionary()


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
    key = _CLASSES.get(spec) if isinstance(spec, str) else spec
    can_keep = key is not None and not isinstance(spec, type) and key.__hash__ is not None
    if can_keep and (known := _methods.get(key)) is not None:
        return known
    method = resolve(spec)
    if any(isinstance(each, Stateful) for each in method.modules()):
        raise ArgumentError(
            f"{method.label} keeps a state between steps, so `aggregator` must be the same object "
            f"in every call, got {spec!r}, which would begin anew each time. Make it once, with "
            "`resolve(...)` or by its class, and pass that."
        )
    if can_keep and (method.is_foreign if method.state_dict() else isinstance(spec, str)):
        _methods[key] = method
    return method


def _by_path(spec: Mapping[str, Any]) -> Method:
    """The method of a class that LightningCLI describes by its path."""
    path, arguments = spec["class_path"], dict(spec.get("init_args") or {})
    module, _, name = str(path).rpartition(".")
    try:
        cls = getattr(import_module(module or "lightning_jd.aggregators"), name)
    except (ImportError, AttributeError) as error:
        raise ArgumentError(
            f"`class_path` must be the path of a class, got {path!r}: {error}. Write for instance "
            '"lightning_jd.CAGrad", or {"name": "cagrad"}.'
        ) from error
    return _build(cls, arguments) if _is_method(cls) else resolve(cls(**arguments))


def _is_method(cls: object) -> bool:
    return isinstance(cls, type) and issubclass(cls, Method)


def _complete(method: Method) -> Method:
    """The method, if its constructor did what others rely on.

    Raises:
        ArgumentError: If it did not call that of its base class.
    """
    cls = type(method)
    if "_parameters" not in vars(method):
        raise ArgumentError(
            f"The constructor of an aggregator must call `super().__init__()`, "
            f"{cls.__name__}.__init__ does not. Call it before any attribute is set."
        )
    kinds = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    named = [name for name, each in _constructor(cls).parameters.items() if each.kind not in kinds]
    if lost := [name for name in named if not hasattr(method, name)]:
        warnings.warn(
            f"{cls.__name__} should store the argument {lost[0]!r} of its constructor as "
            f"`self.{lost[0]}`: otherwise its `repr` and the report of a run do not show it.",
            UserWarning,
            stacklevel=3,
        )
    return method


def _lookup(name: str) -> type[Method]:
    if name in _CLASSES:
        return _CLASSES[name]
    plain = _plain(name)
    matches = [known for known in _CLASSES if _plain(known) == plain]
    if len(matches) != 1:
        raise UnknownNameError.of("aggregator", name, _CLASSES)
    return _CLASSES[matches[0]]


def _plain(name: str) -> str:
    """A name without what people write in different ways: ``"IMTL-G"`` is ``"imtlg"``."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _build(cls: type[Method], arguments: dict[str, Any]) -> Method:
    expected = _constructor(cls)
    arguments = {name: _number(expected, name, value) for name, value in arguments.items()}
    try:
        expected.bind(**arguments)
    except TypeError as error:
        written = "".join(f', "{name}": ...' for name in expected.parameters)
        raise ArgumentError(
            f"The arguments must be those of {cls.__name__}{expected}, got {arguments}: {error}. "
            f'Write {{"name": "{cls.name}"{written}}}.'
        ) from error
    return _complete(cls(**arguments))


def _number(expected: Signature, name: str, value: Any) -> Any:
    """The number that a string stands for, where a number is expected: YAML has ``"1e-3"``."""
    parameter = expected.parameters.get(name)
    if not isinstance(value, str) or parameter is None or parameter.annotation not in (int, float):
        return value
    try:
        number = float(value)
    except ValueError:
        return value
    return int(number) if parameter.annotation is int and number.is_integer() else number


@cache
def _constructor(cls: type[Method]) -> Signature:
    return signature(cls).replace(return_annotation=Signature.empty)
