"""What the optimizers share: who is updated together, and the weights of momentum and gradient."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lightning_jd.aggregators import AggregatorSpec, GramianAggregator, resolve
from lightning_jd.errors import ArgumentError
from lightning_jd.optim._two_rows import Products, TwoRows, inner_products

_PIECE = 1 << 18  # entries

NOTHING = Products(0.0, 0.0, 0.0)


class Batch(NamedTuple):
    """Parameters that one kernel updates: of one group, of one type, on one device.

    Attributes:
        group: The group, with its options.
        params: Those that have a gradient.
        grads: What is descended along: gradients with weight decay, their sign turned to maximise.
        momenta: The momenta; empty where there is none yet.
    """

    group: dict[str, Any]
    params: list[Tensor]
    grads: list[Tensor]
    momenta: list[Tensor]


class AggregatedOptimizer(Optimizer):
    r"""An optimizer whose sums of momentum and gradient are taken by an aggregator.

    Where an ordinary optimizer adds :math:`a = \beta m` and :math:`b = (1 - \beta) g`, this one
    takes :math:`w_1 a + w_2 b` with the weights of the aggregator for the two rows, over all
    parameters together. With a non-conflicting one (UPGrad) the new momentum then opposes neither
    the old one nor the gradient. Weights are scaled so that orthogonal rows are added; so
    ``"mean"`` and ``"sum"`` are the ordinary optimizer.

    Inner products are measured and brought to the host, which then decides: one synchronisation
    per step. Momenta and parameters are updated by torch's fused kernels.

    Args:
        params: The parameters, or parameter groups.
        defaults: The options.
        aggregator: A weighted aggregator: a name, a dict with name and arguments, or an object.

    Raises:
        ArgumentError: If the aggregator is not weighted.
    """

    #: The entry of the state that is the momentum.
    _momentum_key: str

    def __init__(
        self, params: Any, defaults: dict[str, Any], aggregator: AggregatorSpec = "upgrad"
    ) -> None:
        method = resolve(aggregator)
        if not isinstance(method, GramianAggregator):
            raise ArgumentError(
                "`aggregator` of an optimizer must compute weights, one for the momentum and one "
                f"for the gradient, got {method.label}. Choose for instance 'upgrad'."
            )
        self.aggregator = method
        self._combine = TwoRows(method)
        self._in_conflict = False
        super().__init__(params, defaults)

    @override
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step.

        Args:
            closure: Reevaluates the model and returns the loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._update([batch for group in self.param_groups for batch in self._batches(group)])
        return loss

    @abstractmethod
    def _start(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Fill the state of a parameter that is updated for the first time."""

    @abstractmethod
    def _update(self, batches: list[Batch]) -> None:
        """Change momenta and parameters."""

    def _batches(self, group: dict[str, Any]) -> list[Batch]:
        found: dict[tuple[object, ...], list[Tensor]] = {}
        for p in group["params"]:
            if p.grad is not None:
                state = self.state[p]
                if not state or p.grad.is_sparse:
                    _check_supported(p)
                    self._start(p, state, group)
                key = (p.dtype, p.device, state.get(self._momentum_key) is None)
                found.setdefault(key, []).append(p)
        return [self._batch(group, params) for params in found.values()]

    def _batch(self, group: dict[str, Any], params: list[Tensor]) -> Batch:
        grads = [_like(p, p.grad) for p in params]
        if group.get("maximize"):
            grads = list(torch._foreach_neg(grads))
        if group.get("weight_decay") and not self._is_decoupled(group):
            grads = list(torch._foreach_add(grads, params, alpha=group["weight_decay"]))
        return Batch(group, params, grads, self._kept(params, self._momentum_key))

    def _kept(self, params: list[Tensor], key: str) -> list[Tensor]:
        """One entry of the state of some parameters, in the layout of these; or nothing."""
        if self.state[params[0]].get(key) is None:
            return []
        found = []
        for p in params:
            state = self.state[p]
            kept = _like(p, state[key])
            state[key] = kept
            found.append(kept)
        return found

    def _is_decoupled(self, group: dict[str, Any]) -> bool:
        """Whether weight decay acts on the parameters themselves."""
        return bool(group.get("decoupled_weight_decay"))

    def _products(self, batches: list[Batch]) -> list[Products]:
        """Inner products of momentum and gradient of each batch; nothing where none are needed."""
        asked = [] if self._combine.is_sum else [b for b in batches if self._has_momentum(b.group)]
        rows = [(batch.momenta, batch.grads) for batch in asked]
        # Steps that conflict come in runs: then the norms are measured at once, not after a look.
        look = self._combine.only_conflict and not self._in_conflict
        products = inner_products(rows, only_conflict=look)
        self._in_conflict = any(each.ab < 0 for each in products)
        found = iter(products)
        return [next(found) if any(b is each for each in asked) else NOTHING for b in batches]

    def _has_momentum(self, group: dict[str, Any]) -> bool:
        """Whether there is something to aggregate."""
        return group.get("momentum") != 0

    @override
    def state_dict(self) -> dict[str, Any]:
        """The state of the optimizer, including that of the aggregator."""
        return {**super().state_dict(), "aggregator": dict(self.aggregator.state_dict())}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict, also one of the corresponding ``torch.optim`` class."""
        own = dict(state_dict)
        kept = own.pop("aggregator", None)
        super().load_state_dict(own)
        if kept is not None:
            self.aggregator.load_state_dict(kept)


def pieces_of(batch: Batch) -> Iterator[Batch]:
    """Some tensors at a time, so many that what several kernels do with them stays in a cache."""
    if batch.params[0].device.type != "cpu":
        yield batch
        return
    lists, start, entries = batch[1:], 0, 0
    for i, p in enumerate(batch.params):
        entries += p.numel()
        if entries >= _PIECE or i + 1 == len(batch.params):
            yield Batch(batch.group, *(each[start : i + 1] for each in lists))
            start, entries = i + 1, 0


def total_of(products: Iterable[Products]) -> Products:
    """Those of all batches together."""
    total = NOTHING
    for each in products:
        total = total.plus(each)
    return total


def _like(p: Tensor, other: Any) -> Any:
    """The same numbers in the layout of a parameter: fused kernels go by memory, not by index."""
    if (p.is_contiguous() and other.is_contiguous()) or p.stride() == other.stride():
        return other
    return torch.empty_like(p).copy_(other)


def _check_supported(p: Tensor) -> None:
    assert p.grad is not None
    kinds = {
        "sparse": p.grad.is_sparse,
        "complex": p.is_complex(),
        "in pieces (FSDP2)": hasattr(p, "device_mesh"),
        "a view with gaps": not p.is_contiguous() and torch.empty_like(p).stride() != p.stride(),
    }
    for kind, found in kinds.items():
        if found:
            raise ArgumentError(
                "Optimizers that aggregate require dense, real, contiguous parameters and "
                f"gradients, got one that is {kind}. Use the torch optimizer for these parameters."
            )
