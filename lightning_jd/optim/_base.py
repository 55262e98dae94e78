"""What the optimizers share: products of momentum and gradient, and the state of the method."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lightning_jd.aggregators import AggregatorSpec, GramianAggregator, resolve
from lightning_jd.errors import ArgumentError
from lightning_jd.optim._two_rows import Products, TwoRows

_SMALL = 1 << 15  # entries of a tensor that is put together with others
_REFRESH = 64  # steps after which the norm of the momentum is measured instead of followed


class Batch(NamedTuple):
    """The parameters of one group that have a gradient.

    Attributes:
        group: The group, with its options.
        params: The parameters.
        grads: What is descended along: gradients with weight decay, their sign turned to maximise.
        momenta: The momenta; ``None`` where there is none yet.
    """

    group: dict[str, Any]
    params: list[Tensor]
    grads: list[Tensor]
    momenta: list[Tensor] | None


class AggregatedOptimizer(Optimizer):
    r"""An optimizer whose sums of momentum and gradient are taken by an aggregator.

    Where an ordinary optimizer adds :math:`a = \beta m` and :math:`b = (1 - \beta) g`, this one
    takes :math:`w_1 a + w_2 b` with the weights of the aggregator for the two rows, over all
    parameters together. With a non-conflicting one (UPGrad) the new momentum then opposes neither
    the old one nor the gradient. Weights are scaled so that orthogonal rows are added; so
    ``"mean"`` and ``"sum"`` are the ordinary optimizer.

    Inner products with the gradient are measured; the norm of the momentum follows from them, and
    is measured every 64 steps. They are brought to the host, which then decides: one
    synchronisation per step.

    Args:
        params: Parameters, or groups of them.
        defaults: The options.
        aggregator: A weighted aggregator: a name, a dict with name and arguments, or an object.

    Raises:
        ArgumentError: If the aggregator is not weighted.
    """

    def __init__(
        self, params: Any, defaults: dict[str, Any], aggregator: AggregatorSpec = "upgrad"
    ) -> None:
        method = resolve(aggregator)
        if not isinstance(method, GramianAggregator):
            raise ArgumentError(
                "`aggregator` of an optimizer must be weighted, because it combines momentum and "
                f"gradient by two weights, got {method.label}. Choose for instance 'upgrad'."
            )
        self.aggregator = method
        self._combine = TwoRows(method)
        self._norms: dict[int, tuple[tuple[int, ...], float, int]] = {}  # by group: who, |m|^2, age
        super().__init__(params, defaults)

    @override
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step.

        Args:
            closure: Computes the loss and its gradients again, and returns it.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        batches = [self._batch(group) for group in self.param_groups]
        self._update([batch for batch in batches if batch.params])
        return loss

    @abstractmethod
    def _momenta(self, group: dict[str, Any], params: list[Tensor]) -> list[Tensor] | None:
        """The momenta of some parameters; ``None`` if the group has none (yet)."""

    @abstractmethod
    def _update(self, batches: list[Batch]) -> None:
        """Change momenta and parameters."""

    def _batch(self, group: dict[str, Any]) -> Batch:
        params = [p for p in group["params"] if p.grad is not None]
        for p in params:
            _check_supported(p)
        grads = [p.grad for p in params]
        if group.get("maximize"):
            grads = list(torch._foreach_neg(grads))
        if group.get("weight_decay") and not self._is_decoupled(group):
            grads = list(torch._foreach_add(grads, params, alpha=group["weight_decay"]))
        return Batch(group, params, grads, self._momenta(group, params) if params else None)

    def _is_decoupled(self, group: dict[str, Any]) -> bool:
        """Whether weight decay acts on the parameters themselves."""
        return bool(group.get("decoupled_weight_decay"))

    def _products(self, batches: Iterable[Batch]) -> list[Products]:
        """Inner products of momentum and gradient in each group."""
        found = []
        for batch in batches:
            if self._combine.is_sum or self._has_no_momentum(batch.group):
                found.append(Products(0.0, 0.0, 0.0))
            elif batch.momenta is None:
                (bb,) = _dots([batch.grads], batch.grads)
                found.append(Products(0.0, 0.0, bb))
            else:
                who = tuple(map(id, batch.params))
                known, squared, age = self._norms.get(id(batch.group), ((), 0.0, _REFRESH))
                ab, bb = _dots([batch.momenta, batch.grads], batch.grads)
                if known != who or age >= _REFRESH or batch.params[0].dtype.itemsize < 4:
                    (squared,) = _dots([batch.momenta], batch.momenta)
                    age = 0
                self._norms[id(batch.group)] = (who, squared, age)
                found.append(Products(squared, ab, bb))
        return found

    def _has_no_momentum(self, group: dict[str, Any]) -> bool:
        """Whether there is nothing to aggregate."""
        return group.get("momentum") == 0

    def _follow(self, batch: Batch, squared: float) -> None:
        """Note the squared norm of the new momentum of a group."""
        if id(batch.group) in self._norms:
            who, _, age = self._norms[id(batch.group)]
            self._norms[id(batch.group)] = (who, squared, age + 1)

    @override
    def state_dict(self) -> dict[str, Any]:
        """The state, with that of the aggregator."""
        return {**super().state_dict(), "aggregator": dict(self.aggregator.state_dict())}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where ``state_dict`` was taken, also by the ordinary optimizer."""
        own = dict(state_dict)
        kept = own.pop("aggregator", None)
        super().load_state_dict(own)
        self._norms.clear()
        if kept is not None:
            self.aggregator.load_state_dict(kept)


def new_products(products: Products, first: float, second: float) -> Products:
    """Inner products of the new momentum, ``first * a + second * b``, and the row b."""
    aa, ab, bb = products
    squared = first**2 * aa + 2 * first * second * ab + second**2 * bb
    return Products(max(squared, 0.0), first * ab + second * bb, bb)


def _check_supported(p: Tensor) -> None:
    assert p.grad is not None
    if p.grad.is_sparse or p.is_complex() or hasattr(p, "device_mesh"):
        kind = (
            "sparse" if p.grad.is_sparse else "complex" if p.is_complex() else "in pieces (FSDP2)"
        )
        raise ArgumentError(
            "Optimizers that aggregate must have dense, real and whole gradients, got one that is "
            f"{kind}. Use the optimizer of torch for these parameters."
        )


def _dots(several: list[list[Tensor]], one: list[Tensor]) -> list[float]:
    """The inner products of some lists of tensors with one of them, on the host."""
    small = [i for i, tensor in enumerate(one) if tensor.numel() <= _SMALL]
    everybody = (*several, one)
    large = [i for i in range(len(one)) if one[i].numel() > _SMALL]
    columns = [[_flat(each[i]) for each in everybody] for i in large]
    if small:  # one product of many small ones, which would cost more to start than to compute
        joined = [torch.cat([each[i].reshape(-1) for i in small]) for each in everybody]
        columns.append([_flat(each) for each in joined])
    # Tensor by tensor, so that what is read twice is read from a cache.
    parts = [torch.stack([torch.dot(each, last) for each in rest]) for *rest, last in columns]
    device = parts[0].device
    together = torch.stack([part.to(device) for part in parts])
    totals: list[float] = (together if device.type == "mps" else together.double()).sum(0).tolist()
    return totals


def _flat(tensor: Tensor) -> Tensor:
    flat = tensor.reshape(-1)
    return flat.float() if flat.dtype.itemsize < 4 else flat
