"""Adam and AdamW, whose first moment an aggregator combines with the gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators import AggregatorSpec
from lightning_jd.aggregators._arguments import not_negative, share
from lightning_jd.optim._base import AggregatedOptimizer, Batch, new_products
from lightning_jd.optim._two_rows import Products


class Adam(AggregatedOptimizer):
    r"""``torch.optim.Adam`` whose first moment is aggregated with the gradient.

    .. math::
        m_t = w_1\, \beta_1\, m_{t-1} + w_2\, (1 - \beta_1)\, g_t

    with weights of the aggregator for the two rows. Second moment, bias correction and update are
    those of Adam. Rows are compared as they are, not as the second moment will scale them.

    Args:
        params: Parameters, or groups of them.
        lr: The learning rate.
        betas: Decay of the first and of the second moment.
        eps: Added to the denominator.
        weight_decay: Added to the gradient, times the parameter.
        amsgrad: Whether the second moment never falls.
        aggregator: A weighted aggregator; ``"mean"`` and ``"sum"`` are ``torch.optim.Adam``.
        maximize: Whether to go upwards.

    Raises:
        ArgumentError: If an argument is out of its range, or the aggregator is not weighted.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        aggregator: AggregatorSpec = "upgrad",
        *,
        maximize: bool = False,
    ) -> None:
        defaults = {
            "lr": not_negative("lr", lr),
            "betas": tuple(share("betas", beta, below_one=True) for beta in betas),
            "eps": not_negative("eps", eps),
            "weight_decay": not_negative("weight_decay", weight_decay),
            "amsgrad": amsgrad,
            "maximize": maximize,
        }
        super().__init__(params, defaults, aggregator)

    @override
    def _momenta(self, group: dict[str, Any], params: list[Tensor]) -> list[Tensor] | None:
        for p in params:
            state = self.state[p]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
                if group.get("amsgrad"):
                    state["max_exp_avg_sq"] = torch.zeros_like(p)
        return [self.state[p]["exp_avg"] for p in params]

    @override
    def _update(self, batches: list[Batch]) -> None:
        self._moments(batches)
        for batch in batches:
            group, states = batch.group, [self.state[p] for p in batch.params]
            lr = float(group["lr"])
            if self._is_decoupled(group) and group["weight_decay"]:
                torch._foreach_mul_(batch.params, 1 - lr * group["weight_decay"])
            beta1, beta2 = group["betas"]
            steps = [float(state["step"]) for state in states]
            roots = torch._foreach_sqrt(_second_moments(group, states))
            torch._foreach_div_(roots, [(1 - beta2**t) ** 0.5 for t in steps])
            torch._foreach_add_(roots, group["eps"])
            sizes = [-lr / (1 - beta1**t) for t in steps]
            assert batch.momenta is not None
            torch._foreach_addcdiv_(batch.params, batch.momenta, roots, sizes)

    def _moments(self, batches: list[Batch]) -> tuple[list[Products], float, float]:
        """Update both moments; inner products of the new first one and the gradient, by group."""
        measured = self._products(batches)
        total = Products(0.0, 0.0, 0.0)
        for batch, products in zip(batches, measured, strict=True):
            beta = batch.group["betas"][0]
            total = total.plus(products.scaled(beta, 1 - beta))
        first, second = self._combine(total)
        after = []
        for batch, products in zip(batches, measured, strict=True):
            beta1, beta2 = batch.group["betas"]
            states = [self.state[p] for p in batch.params]
            torch._foreach_add_([state["step"] for state in states], 1)
            assert batch.momenta is not None
            torch._foreach_mul_(batch.momenta, first * beta1)
            torch._foreach_add_(batch.momenta, batch.grads, alpha=second * (1 - beta1))
            squares = [state["exp_avg_sq"] for state in states]
            torch._foreach_mul_(squares, beta2)
            torch._foreach_addcmul_(squares, batch.grads, batch.grads, 1 - beta2)
            after.append(new_products(products, first * beta1, second * (1 - beta1)))
            self._follow(batch, after[-1].aa)
        return after, first, second


class AdamW(Adam):
    """``torch.optim.AdamW`` whose first moment is aggregated with the gradient.

    As :class:`Adam`, with weight decay that acts on the parameters themselves.

    Args:
        params: Parameters, or groups of them.
        lr: The learning rate.
        betas: Decay of the first and of the second moment.
        eps: Added to the denominator.
        weight_decay: What parameters are multiplied by is one minus this times the learning rate.
        amsgrad: Whether the second moment never falls.
        aggregator: A weighted aggregator; ``"mean"`` and ``"sum"`` are ``torch.optim.AdamW``.
        maximize: Whether to go upwards.

    Raises:
        ArgumentError: If an argument is out of its range, or the aggregator is not weighted.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        aggregator: AggregatorSpec = "upgrad",
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, aggregator, maximize=maximize
        )

    @override
    def _is_decoupled(self, group: dict[str, Any]) -> bool:
        return True


def _second_moments(group: dict[str, Any], states: list[dict[str, Any]]) -> list[Tensor]:
    squares = [state["exp_avg_sq"] for state in states]
    if not group.get("amsgrad"):
        return squares
    largest = [state["max_exp_avg_sq"] for state in states]
    torch._foreach_maximum_(largest, squares)
    return largest
