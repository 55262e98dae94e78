"""SGD with momentum, which an aggregator combines with the gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators import AggregatorSpec
from lightning_jd.aggregators._arguments import not_negative
from lightning_jd.errors import ArgumentError
from lightning_jd.optim._base import AggregatedOptimizer, Batch, new_products
from lightning_jd.optim._two_rows import Products


class SGD(AggregatedOptimizer):
    r"""``torch.optim.SGD`` whose momentum is aggregated with the gradient.

    .. math::
        m_t = w_1\, \mu\, m_{t-1} + w_2\, (1 - \tau)\, g_t, \qquad
        \theta_t = \theta_{t-1} - \eta\, m_t,

    with weights of the aggregator for the two rows. The first momentum is the gradient. With
    ``nesterov`` the update is :math:`w_1' \mu\, m_t + w_2' g_t`, with weights for these two rows.

    Args:
        params: Parameters, or groups of them.
        lr: The learning rate :math:`\eta`.
        momentum: :math:`\mu`; 0 is plain SGD, where there is nothing to aggregate.
        dampening: :math:`\tau`.
        weight_decay: Added to the gradient, times the parameter.
        nesterov: Whether to look ahead.
        aggregator: A weighted aggregator; ``"mean"`` and ``"sum"`` are ``torch.optim.SGD``.
        maximize: Whether to go upwards.

    Raises:
        ArgumentError: If an argument is out of its range, or the aggregator is not weighted.

    Example:
        >>> x = torch.tensor([3.0], requires_grad=True)
        >>> optimizer = SGD([x], lr=0.5, momentum=0.5, aggregator={"name": "upgrad", "reg": 0.0})
        >>> for gradient in (2.0, -1.0):  # the second one opposes the momentum
        ...     x.grad = torch.tensor([gradient])
        ...     optimizer.step()
        >>> x  # opposite rows leave nothing
        tensor([2.], requires_grad=True)
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        aggregator: AggregatorSpec = "upgrad",
        *,
        maximize: bool = False,
    ) -> None:
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ArgumentError(
                "`nesterov` must have a momentum and no dampening, got "
                f"momentum={momentum} and dampening={dampening}."
            )
        defaults = {
            "lr": not_negative("lr", lr),
            "momentum": not_negative("momentum", momentum),
            "dampening": float(dampening),
            "weight_decay": not_negative("weight_decay", weight_decay),
            "nesterov": nesterov,
            "maximize": maximize,
        }
        super().__init__(params, defaults, aggregator)

    @override
    def _momenta(self, group: dict[str, Any], params: list[Tensor]) -> list[Tensor] | None:
        if not group["momentum"]:
            return None
        for p in params:
            if self.state[p].get("momentum_buffer") is None:  # then the gradient becomes it
                self.state[p]["momentum_buffer"] = None
        found = [self.state[p]["momentum_buffer"] for p in params]
        if all(buffer is None for buffer in found):
            return None
        for p, buffer in zip(params, found, strict=True):
            if buffer is None:  # one that comes later begins with nothing
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
        return [self.state[p]["momentum_buffer"] for p in params]

    @override
    def _update(self, batches: list[Batch]) -> None:
        measured = self._products(batches)
        factors = [(b.group["momentum"], 1 - b.group["dampening"]) for b in batches]
        total = Products(0.0, 0.0, 0.0)
        for products, (mu, share) in zip(measured, factors, strict=True):
            total = total.plus(products.scaled(mu, share))
        first, second = self._combine(total)
        ahead = Products(0.0, 0.0, 0.0)
        for batch, products, (mu, share) in zip(batches, measured, factors, strict=True):
            after = new_products(products, first * mu, second * share)
            if batch.momenta is None:  # then the gradient becomes the momentum
                after = Products(products.bb, products.bb, products.bb)
            self._follow(batch, after.aa)
            if batch.group["nesterov"]:
                ahead = ahead.plus(after.scaled(mu, 1.0))
        looking = self._combine(ahead) if any(b.group["nesterov"] for b in batches) else (1.0, 1.0)
        for batch, (mu, share) in zip(batches, factors, strict=True):
            momenta = self._new_momenta(batch, first * mu, second * share)
            lr = float(batch.group["lr"])
            if not mu or batch.group["nesterov"]:
                size = looking[1] if mu else 1.0
                torch._foreach_add_(batch.params, batch.grads, alpha=-lr * size)
            if mu:
                size = looking[0] * mu if batch.group["nesterov"] else 1.0
                torch._foreach_add_(batch.params, momenta, alpha=-lr * size)

    def _new_momenta(self, batch: Batch, first: float, second: float) -> list[Tensor]:
        if not batch.group["momentum"]:
            return []
        if batch.momenta is not None:
            torch._foreach_mul_(batch.momenta, first)
            torch._foreach_add_(batch.momenta, batch.grads, alpha=second)
            return batch.momenta
        momenta = [gradient.clone() for gradient in batch.grads]
        for p, buffer in zip(batch.params, momenta, strict=True):
            self.state[p]["momentum_buffer"] = buffer
        return momenta
