"""SGD with momentum, which an aggregator combines with the gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators import AggregatorSpec
from lightning_jd.aggregators._arguments import not_negative
from lightning_jd.errors import ArgumentError
from lightning_jd.optim._base import AggregatedOptimizer, Batch, pieces_of, total_of


class SGD(AggregatedOptimizer):
    r"""``torch.optim.SGD`` that aggregates momentum and gradient instead of adding them.

    .. math::
        m_t = w_1\, \mu\, m_{t-1} + w_2\, (1 - \tau)\, g_t, \qquad
        \theta_t = \theta_{t-1} - \eta\, m_t,

    where :math:`w` are the weights of the aggregator for these two rows. The first momentum is the
    gradient. With ``nesterov``, the update is :math:`w_1' \mu\, m_t + w_2' g_t`, with the weights
    for those two rows.

    Args:
        params: The parameters, or parameter groups.
        lr: The learning rate :math:`\eta`.
        momentum: :math:`\mu`; 0 is plain SGD.
        dampening: :math:`\tau`.
        weight_decay: The coefficient of the L2 penalty.
        nesterov: Whether to use Nesterov momentum.
        aggregator: An aggregator that computes weights; ``"mean"`` and ``"sum"`` equal
            ``torch.optim.SGD``.
        maximize: Whether to maximize the objective.

    Raises:
        ArgumentError: If an argument is out of its range, or the aggregator does not compute
            weights.

    Example:
        >>> x = torch.tensor([3.0], requires_grad=True)
        >>> optimizer = SGD([x], lr=0.5, momentum=0.5, aggregator={"name": "upgrad", "reg": 0.0})
        >>> for gradient in (2.0, -1.0):  # the second one opposes the momentum
        ...     x.grad = torch.tensor([gradient])
        ...     optimizer.step()
        >>> x  # opposite rows cancel
        tensor([2.], requires_grad=True)
    """

    _momentum_key = "momentum_buffer"

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
                f"`nesterov` requires a momentum and no dampening, got momentum={momentum} and "
                f"dampening={dampening}."
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
    def _start(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        state["momentum_buffer"] = None  # the first gradient becomes it

    @override
    def _update(self, batches: list[Batch]) -> None:
        measured = self._products(batches)
        factors = [(b.group["momentum"], 1 - b.group["dampening"]) for b in batches]
        rows = zip(measured, factors, strict=True)
        first, second = self._combine(total_of(each.scaled(*pair) for each, pair in rows))
        after = [
            products.mixed(*((first * mu, second * share) if batch.momenta else (0.0, 1.0)))
            for batch, products, (mu, share) in zip(batches, measured, factors, strict=True)
        ]
        ahead = [
            products.scaled(mu, 1.0)
            for batch, products, (mu, _) in zip(batches, after, factors, strict=True)
            if batch.group["nesterov"]
        ]
        looking = self._combine(total_of(ahead)) if ahead else (1.0, 1.0)
        is_plain = (first, second, *looking) == (1, 1, 1, 1)
        for batch, (mu, share) in zip(batches, factors, strict=True):
            lr, fresh = float(batch.group["lr"]), not batch.momenta
            if mu and fresh:  # for the kernel to fill
                for p in batch.params:
                    self.state[p]["momentum_buffer"] = torch.empty_like(p)
            is_ahead = bool(mu and batch.group["nesterov"])
            by_two = is_ahead and not is_plain  # the kernel knows one factor for both rows
            for piece in pieces_of(batch):
                if by_two:
                    torch._foreach_add_(piece.params, piece.grads, alpha=-lr * looking[1])
                torch._fused_sgd_(
                    piece.params,
                    piece.grads,
                    self._kept(piece.params, "momentum_buffer") if mu and fresh else piece.momenta,
                    weight_decay=0.0,  # the gradient has it already
                    momentum=first * mu,
                    dampening=1 - second * share,
                    lr=lr * looking[0] * mu if by_two else lr,
                    nesterov=is_ahead and is_plain,
                    maximize=False,
                    is_first_step=fresh,
                )
