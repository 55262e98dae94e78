"""Adam, AdamW and NAdam, whose first moment an aggregator combines with the gradient."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators import AggregatorSpec
from lightning_jd.aggregators._arguments import not_negative, share
from lightning_jd.optim._base import AggregatedOptimizer, Batch, pieces_of, total_of
from lightning_jd.optim._two_rows import Products


class Moments(AggregatedOptimizer):
    """An optimizer with two moments; ``more`` are options that have been checked."""

    _momentum_key = "exp_avg"

    def __init__(
        self,
        params: Any,
        aggregator: AggregatorSpec,
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        **more: Any,
    ) -> None:
        defaults = {
            "lr": not_negative("lr", lr),
            "betas": tuple(share("betas", beta, below_one=True) for beta in betas),
            "eps": not_negative("eps", eps),
            "weight_decay": not_negative("weight_decay", weight_decay),
            **more,
        }
        super().__init__(params, defaults, aggregator)

    @override
    def _start(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        state["step"] = torch.zeros((), dtype=torch.float32)
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
        if group.get("amsgrad"):
            state["max_exp_avg_sq"] = torch.zeros_like(p)

    @override
    def _update(self, batches: list[Batch]) -> None:
        batches = [part for batch in batches for part in self._of_one_age(batch)]
        betas = [batch.group["betas"][0] for batch in batches]
        rows = list(zip(self._products(batches), betas, strict=True))
        weights = self._combine(total_of(each.scaled(b, 1 - b) for each, b in rows))
        for batch in batches:
            torch._foreach_add_([self.state[p]["step"] for p in batch.params], 1)
        after = [each.mixed(weights[0] * b, weights[1] * (1 - b)) for each, b in rows]
        self._descend(batches, weights, after)

    @abstractmethod
    def _descend(
        self, batches: list[Batch], weights: tuple[float, float], after: list[Products]
    ) -> None:
        """Change moments and parameters.

        Args:
            batches: The parameters of each batch have taken equally many steps.
            weights: Those of moment and gradient.
            after: Inner products of the new moment and the gradient, by batch.
        """

    def _of_one_age(self, batch: Batch) -> list[Batch]:
        """Parts of a batch whose parameters have taken the same number of steps."""
        ages: dict[tuple[float, float], list[int]] = {}
        for i, p in enumerate(batch.params):
            state = self.state[p]
            state["step"] = state["step"].cpu()  # one of torch's optimizers keeps it elsewhere
            age = float(state["step"]), float(state.get("mu_product", 1.0))
            ages.setdefault(age, []).append(i)
        if len(ages) == 1:
            return [batch]
        lists = batch[1:]
        return [
            Batch(batch.group, *([each[i] for i in own] for each in lists)) for own in ages.values()
        ]

    def _age(self, batch: Batch) -> float:
        """The number of steps of a batch, with the present one."""
        return float(self.state[batch.params[0]]["step"])

    def _along_moments(
        self, batch: Batch, weights: tuple[float, float], factor: float = 1.0
    ) -> None:
        """Update both moments, and the parameters along the first one.

        Torch's kernel knows one factor for both rows. So the old moment is multiplied by the ratio
        of the weights before, and the new one by the weight of the gradient after; in between the
        learning rate has that weight.

        Args:
            batch: The parameters.
            weights: Those of moment and gradient.
            factor: Of the learning rate, but not of weight decay.
        """
        group, (first, second), some = batch.group, weights, batch.params[0]
        if weights != (1, 1):  # a weight of zero has no ratio: one lost in rounding stands for it
            least = (1e-12 if some.dtype.itemsize > 2 else 1e-4) * max(abs(first), 1.0)
            second = second if abs(second) > least else least
            torch._foreach_mul_(batch.momenta, first / second)
        lr = float(group["lr"])
        decay = lr * group["weight_decay"] if self._is_decoupled(group) else 0.0
        size = lr * factor * second
        torch._fused_adamw_(
            batch.params,
            batch.grads,
            batch.momenta,
            self._kept(batch.params, "exp_avg_sq"),
            self._kept(batch.params, "max_exp_avg_sq") if group.get("amsgrad") else [],
            [torch.full((), self._age(batch), device=some.device)] * len(batch.params),
            lr=size,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=decay / size if size else 0.0,
            eps=group["eps"],
            amsgrad=bool(group.get("amsgrad")),
            maximize=False,  # the gradient has been turned already
        )
        if second != 1:
            torch._foreach_mul_(batch.momenta, second)


class Adam(Moments):
    r"""``torch.optim.Adam`` that aggregates first moment and gradient instead of adding them.

    .. math::
        m_t = w_1\, \beta_1\, m_{t-1} + w_2\, (1 - \beta_1)\, g_t

    where :math:`w` are the weights of the aggregator for these two rows. Second moment, bias
    correction and update are those of Adam. The rows are aggregated before the second moment
    rescales them.

    Args:
        params: The parameters, or parameter groups.
        lr: The learning rate.
        betas: Decay rates of the first and second moment.
        eps: Added to the denominator.
        weight_decay: The coefficient of the L2 penalty.
        amsgrad: Whether to use the maximum of all second moments.
        aggregator: An aggregator that computes weights; ``"mean"`` and ``"sum"`` equal
            ``torch.optim.Adam``.
        maximize: Whether to maximize the objective.

    Raises:
        ArgumentError: If an argument is out of its range, or the aggregator does not compute
            weights.
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
        super().__init__(
            params,
            aggregator,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            amsgrad=amsgrad,
            maximize=maximize,
        )

    @override
    def _descend(
        self, batches: list[Batch], weights: tuple[float, float], after: list[Products]
    ) -> None:
        for batch in batches:
            for piece in pieces_of(batch):
                self._along_moments(piece, weights)


class AdamW(Adam):
    """``torch.optim.AdamW`` that aggregates first moment and gradient instead of adding them.

    The arguments are those of :class:`Adam`; ``weight_decay`` is decoupled, and 0.01 by default.
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


class NAdam(Moments):
    r"""``torch.optim.NAdam`` that aggregates first moment and gradient instead of adding them.

    The first moment is that of :class:`Adam`. The NAdam update is a sum of moment and gradient,
    each with its bias correction; the aggregator combines these two as well. The other arguments
    are those of :class:`Adam`.

    Args:
        momentum_decay: The decay rate of the momentum schedule.
        decoupled_weight_decay: Whether to decouple the weight decay, as in AdamW.
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
