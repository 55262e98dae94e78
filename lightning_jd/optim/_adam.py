"""Adam and AdamW, whose first moment an aggregator combines with the gradient."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from lightning_jd.aggregators import AggregatorSpec
from lightning_jd.optim._base import Batch, pieces_of
from lightning_jd.optim._moments import Moments
from lightning_jd.optim._two_rows import Products


class Adam(Moments):
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
