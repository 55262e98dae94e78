"""Objects of ``torchjd.aggregation`` as aggregators; torchjd is imported only if one is given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from lightning_jd.aggregators._base import (
    Aggregator,
    GramianAggregator,
    Property,
    check_gramian,
    check_weights,
)
from lightning_jd.aggregators._halves import Halves
from lightning_jd.aggregators._memory import check_named, group_key
from lightning_jd.aggregators._random import OwnGenerator
from lightning_jd.aggregators._step import Step
from lightning_jd.errors import ArgumentError

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


def comes_from_torchjd(candidate: object) -> bool:
    """Whether the class of ``candidate``, or one of its bases, is defined in torchjd."""
    return any(base.__module__.partition(".")[0] == "torchjd" for base in type(candidate).__mro__)


class _Wrapped(OwnGenerator):
    """Copies of an object of torchjd, and everything that they keep, as state of ours.

    Torchjd knows positions, not names. So there is one copy for every group of parameters and every
    set of tasks that occur together, in their order: what belongs to one set is not touched by the
    steps of another. An object that keeps nothing serves all of them.

    Random numbers come from a stream of our own, which begins with the seed that torch had when the
    object was wrapped; the global generators are not advanced.

    Args:
        wrapped: The object. It is copied; the original is not used any more.
    """

    is_foreign: bool = True

    def __init__(self, wrapped: nn.Module) -> None:
        super().__init__(seed=torch.initial_seed() % 2**63)
        # Not as submodules: their state dict changes its keys with the first step.
        self._pristine = (deepcopy(wrapped),)
        self._is_stateful = any(hasattr(each, "reset") for each in wrapped.modules())
        self._copies: dict[tuple[str, ...], nn.Module] = {}

    @property
    def wrapped(self) -> nn.Module:
        """The object of torchjd as it was given."""
        return self._pristine[0]

    @property
    def label(self) -> str:
        """The name that it has in torchjd."""
        return f"torchjd.{type(self.wrapped).__name__}"

    @override
    def reset(self) -> None:
        """Forget everything, for a new run."""
        super().reset()
        self._copies.clear()

    @contextmanager
    def _copy(self, step: Step, names: tuple[str, ...] | None = None) -> Iterator[Any]:
        """The copy to ask in a step, with the random stream of our own."""
        if self._is_stateful:
            check_named(type(self.wrapped).__name__, step)
            key = (group_key(step.group), *(names or step.names))
            copy = self._copies.setdefault(key, deepcopy(self.wrapped))
        else:
            copy = self.wrapped
        seed = int(torch.randint(2**63 - 1, (), generator=self.generator))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            yield copy

    @override
    def get_extra_state(self) -> dict[str, Any]:
        """The position in the random stream, and what each copy keeps."""
        kept = [[list(key), changes(copy, self.wrapped)] for key, copy in self._copies.items()]
        return {"generator": super().get_extra_state(), "copies": kept}

    @override
    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the state."""
        super().set_extra_state(state["generator"])
        self._copies = {tuple(key): restored(self.wrapped, kept) for key, kept in state["copies"]}
        for copy in self._copies.values():
            for module in copy.modules():
                # NashMTL builds its program in its first call.
                getattr(module, "_init_optim_problem", lambda: None)()

    @override
    def extra_repr(self) -> str:
        """The object of torchjd."""
        return repr(self.wrapped)


class TorchJDWeighting(_Wrapped, GramianAggregator):
    """A Weighting of torchjd that reads the Gramian.

    Args:
        wrapped: The object of torchjd.
    """

    properties = frozenset({Property.WEIGHTED})

    @override
    def weigh(self, gramian: Tensor, step: Step) -> Tensor:
        check_gramian(gramian)
        with self._copy(step) as weighting:
            weights = weighting(gramian)
        return check_weights(type(self.wrapped).__name__, weights, gramian)

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        return self.weigh(gramian, Step.bare(len(gramian)))


class TorchJDDoubleSampling(TorchJDWeighting):
    """A Weighting of torchjd that reads the products of two independent samples of the rows.

    Args:
        wrapped: The object of torchjd.
    """

    halves: bool = True

    @override
    def weigh(self, gramian: Tensor, step: Step) -> Tensor:
        check_gramian(gramian)
        halves = Halves.of(step)
        A = halves.between(gramian)
        if A is None:
            raise ArgumentError(
                f"{type(self.wrapped).__name__} must have two samples in every step, got one. Use "
                "a number of batches that is a multiple of accumulate_grad_batches."
            )
        with self._copy(step, halves.names) as weighting:
            weights = weighting(A)
        return halves.spread(check_weights(type(self.wrapped).__name__, weights, A))


class TorchJDAggregator(_Wrapped, Aggregator):
    """An Aggregator of torchjd, or a Weighting that reads the Jacobian itself.

    Args:
        wrapped: The object of torchjd: matrix to vector.
    """

    @override
    def combine(self, jacobian: Tensor, step: Step) -> Tensor:
        with self._copy(step) as aggregator:
            result: Tensor = aggregator(jacobian)
        return result.to(jacobian)

    @override
    def aggregate(self, jacobian: Tensor) -> Tensor:
        return self.combine(jacobian, Step.bare(len(jacobian)))


def adapt(candidate: Any) -> Aggregator:
    """Wrap an object of torchjd, so that it needs the Gramian only wherever that is enough.

    Raises:
        ArgumentError: If it is neither a Weighting nor an Aggregator.
    """
    from torchjd import aggregation as torchjd

    # These look at the number of rows only, which the Gramian has as well.
    counts_rows = (
        torchjd.ConstantWeighting,
        torchjd.MeanWeighting,
        torchjd.RandomWeighting,
        torchjd.SumWeighting,
    )
    if isinstance(candidate, torchjd.GramianWeightedAggregator):
        return TorchJDWeighting(candidate.gramian_weighting)
    if isinstance(candidate, torchjd.WeightedAggregator):
        if isinstance(candidate.weighting, counts_rows):
            return TorchJDWeighting(candidate.weighting)
        if _samples_twice(candidate.weighting):
            return TorchJDDoubleSampling(candidate.weighting)
        return TorchJDAggregator(candidate)
    if isinstance(candidate, torchjd.Aggregator):
        return TorchJDAggregator(candidate)
    if isinstance(candidate, torchjd.Weighting):
        if _samples_twice(candidate):
            return TorchJDDoubleSampling(candidate)
        if _reads_the_jacobian(candidate) and not isinstance(candidate, counts_rows):
            return TorchJDAggregator(torchjd.WeightedAggregator(candidate))
        return TorchJDWeighting(candidate)
    raise ArgumentError(
        "An object of torchjd must be a Weighting or an Aggregator to aggregate, "
        f"got {type(candidate).__name__}."
    )


def _reads_the_jacobian(weighting: object) -> bool:
    # Generic arguments do not exist at run time; torchjd marks these weightings by a private base.
    inner = getattr(weighting, "weighting", None)  # one that wraps another reads what that one does
    if type(weighting).__name__ == "CRMOGMWeighting" and inner is not None:
        return _reads_the_jacobian(inner)
    return any(base.__name__ == "_MatrixWeighting" for base in type(weighting).__mro__)


def _samples_twice(weighting: object) -> bool:
    if type(weighting).__name__ == "CRMOGMWeighting":
        return _samples_twice(weighting.weighting)  # type: ignore[attr-defined]
    names = {base.__name__ for base in type(weighting).__mro__}
    return bool(names & {"MoDoWeighting", "SDMGradWeighting"})
