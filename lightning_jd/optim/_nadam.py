"""NAdam, whose first moment an aggregator combines with the gradient, twice."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators import AggregatorSpec
from lightning_jd.aggregators._arguments import not_negative
from lightning_jd.optim._adam import Adam
from lightning_jd.optim._base import Batch
from lightning_jd.optim._two_rows import Products


class NAdam(Adam):
    r"""``torch.optim.NAdam`` whose first moment is aggregated with the gradient.

    The moment is that of :class:`Adam`. NAdam looks ahead: its update is the sum of moment and
    gradient, each times its correction; this sum is taken by the aggregator too.

    Args:
        params: Parameters, or groups of them.
        lr: The learning rate.
        betas: Decay of the first and of the second moment.
        eps: Added to the denominator.
        weight_decay: Added to the gradient, times the parameter.
        momentum_decay: How fast the schedule of the momentum reaches its end.
        decoupled_weight_decay: Whether weight decay acts on the parameters themselves.
        aggregator: A weighted aggregator; ``"mean"`` and ``"sum"`` are ``torch.optim.NAdam``.
        maximize: Whether to go upwards.

    Raises:
        ArgumentError: If an argument is out of its range, or the aggregator is not weighted.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        aggregator: AggregatorSpec = "upgrad",
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, aggregator=aggregator, maximize=maximize
        )
        for group in self.param_groups:
            group.setdefault("momentum_decay", not_negative("momentum_decay", momentum_decay))
            group.setdefault("decoupled_weight_decay", decoupled_weight_decay)
        self.defaults |= {
            "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
        }

    @override
    def _momenta(self, group: dict[str, Any], params: list[Tensor]) -> list[Tensor] | None:
        momenta = super()._momenta(group, params)
        for p in params:
            self.state[p].setdefault("mu_product", torch.ones((), dtype=torch.float32))
        return momenta

    @override
    def _update(self, batches: list[Batch]) -> None:
        after, _, _ = self._moments(batches)
        corrections = [self._corrections(batch) for batch in batches]
        ahead = Products(0.0, 0.0, 0.0)
        for products, (of_moment, of_gradient) in zip(after, corrections, strict=True):
            # Corrections may differ within a group by when a parameter came: the last one stands.
            ahead = ahead.plus(products.scaled(of_moment[-1], of_gradient[-1]))
        first, second = self._combine(ahead)
        for batch, (of_moment, of_gradient) in zip(batches, corrections, strict=True):
            group, states = batch.group, [self.state[p] for p in batch.params]
            lr, beta2 = float(group["lr"]), group["betas"][1]
            if self._is_decoupled(group) and group["weight_decay"]:
                torch._foreach_mul_(batch.params, 1 - lr * group["weight_decay"])
            roots = torch._foreach_sqrt([state["exp_avg_sq"] for state in states])
            scales = [(1 - beta2 ** float(state["step"])) ** 0.5 for state in states]
            torch._foreach_div_(roots, scales)
            torch._foreach_add_(roots, group["eps"])
            sizes = [-lr * second * each for each in of_gradient]
            torch._foreach_addcdiv_(batch.params, batch.grads, roots, sizes)
            sizes = [-lr * first * each for each in of_moment]
            assert batch.momenta is not None
            torch._foreach_addcdiv_(batch.params, batch.momenta, roots, sizes)

    def _corrections(self, batch: Batch) -> tuple[list[float], list[float]]:
        """The factors of moment and gradient in the update, one each per parameter."""
        beta1, decay = batch.group["betas"][0], batch.group["momentum_decay"]
        of_moment, of_gradient = [], []
        for p in batch.params:
            t = float(self.state[p]["step"])
            mu, ahead = (beta1 * (1 - 0.5 * 0.96 ** (s * decay)) for s in (t, t + 1))
            self.state[p]["mu_product"] *= mu
            product = float(self.state[p]["mu_product"])
            of_gradient.append((1 - mu) / (1 - product))
            of_moment.append(ahead / (1 - product * ahead))
        return of_moment, of_gradient
