"""Adam and AdamW, whose first moment an aggregator combines with the gradient."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from lightning_jd.aggregators import AggregatorSpec
from lightning_jd.optim._base import Batch, pieces_of
from lightning_jd.optim._moments import Moments
from lightning_jd.optim._two_rows import Products


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

    Same as :class:`Adam`, with decoupled weight decay.

    Args:
        params: The parameters, or parameter groups.
        lr: The learning rate.
        betas: Decay rates of the first and second moment.
        eps: Added to the denominator.
        weight_decay: The coefficient of the decoupled weight decay.
        amsgrad: Whether to use the maximum of all second moments.
        aggregator: An aggregator that computes weights; ``"mean"`` and ``"sum"`` equal
            ``torch.optim.AdamW``.
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
