"""NAdam, whose first moment an aggregator combines with the gradient, twice."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators import AggregatorSpec
from lightning_jd.aggregators._arguments import not_negative
from lightning_jd.optim._base import Batch, pieces_of, total_of
from lightning_jd.optim._moments import Moments
from lightning_jd.optim._two_rows import Products


class NAdam(Moments):
    r"""``torch.optim.NAdam`` that aggregates first moment and gradient instead of adding them.

    The first moment is that of :class:`Adam`. The NAdam update is a sum of moment and gradient,
    each with its bias correction; the aggregator combines these two as well.

    Args:
        params: The parameters, or parameter groups.
        lr: The learning rate.
        betas: Decay rates of the first and second moment.
        eps: Added to the denominator.
        weight_decay: The coefficient of the L2 penalty.
        momentum_decay: The decay rate of the momentum schedule.
        decoupled_weight_decay: Whether to decouple the weight decay, as in AdamW.
        aggregator: An aggregator that computes weights; ``"mean"`` and ``"sum"`` equal
            ``torch.optim.NAdam``.
        maximize: Whether to maximize the objective.

    Raises:
        ArgumentError: If an argument is out of its range, or the aggregator does not compute
            weights.
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
            params,
            aggregator,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            momentum_decay=not_negative("momentum_decay", momentum_decay),
            decoupled_weight_decay=decoupled_weight_decay,
            maximize=maximize,
        )

    @override
    def _start(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        super()._start(p, state, group)
        state["mu_product"] = torch.ones((), dtype=torch.float32)

    @override
    def _descend(
        self, batches: list[Batch], weights: tuple[float, float], after: list[Products]
    ) -> None:
        factors = [self._corrections(batch) for batch in batches]
        rows = zip(after, factors, strict=True)
        ahead = self._combine(total_of(each.scaled(*pair) for each, pair in rows))
        for batch, (of_moment, of_gradient) in zip(batches, factors, strict=True):
            beta1, beta2 = batch.group["betas"]
            # The kernel divides by the correction of Adam, which is not that of NAdam.
            along_moment = ahead[0] * of_moment * (1 - beta1 ** self._age(batch))
            # This one multiplies the fraction instead of dividing the root: one pass less.
            correction = (1 - beta2 ** self._age(batch)) ** 0.5
            size = -float(batch.group["lr"]) * ahead[1] * of_gradient * correction
            for piece in pieces_of(batch):
                self._along_moments(piece, weights, along_moment)
                roots = torch._foreach_sqrt(self._kept(piece.params, "exp_avg_sq"))
                torch._foreach_add_(roots, batch.group["eps"] * correction)
                torch._foreach_addcdiv_(piece.params, piece.grads, roots, size)

    def _corrections(self, batch: Batch) -> tuple[float, float]:
        """The factors of moment and gradient in the update."""
        beta1, decay = batch.group["betas"][0], batch.group["momentum_decay"]
        products = [self.state[p]["mu_product"] for p in batch.params]
        t = self._age(batch)
        mu, ahead = (beta1 * (1 - 0.5 * 0.96 ** (s * decay)) for s in (t, t + 1))
        torch._foreach_mul_(products, mu)
        product = float(products[0])
        return ahead / (1 - product * ahead), (1 - mu) / (1 - product)
