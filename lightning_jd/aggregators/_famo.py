"""FAMO: all losses fall at the same rate, without gradients of single losses."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import not_negative, positive
from lightning_jd.aggregators._balancer import Balancer, check_positive
from lightning_jd.aggregators._learned import adam_step
from lightning_jd.aggregators._memory import Stateful
from lightning_jd.aggregators._registry import register
from lightning_jd.aggregators._step import Step
from lightning_jd.errors import ArgumentError


@register
class FAMO(Stateful, Balancer):
    r"""Fast adaptive multitask optimization: weights with which all losses fall at the same rate.

    .. math::
        w_i = c\, \frac{z_i}{\ell_i - b_i}, \qquad z = \operatorname{softmax}(\xi), \qquad
        \frac1c = \sum_{i=1}^{m} \frac{z_i}{\ell_i - b_i},

    a convex combination of the losses. The logits :math:`\xi` start at 0. After a step that changed
    the losses by :math:`\delta_i = \log(\ell_i^{\text{before}} - b_i) - \log(\ell_i^{\text{after}}
    - b_i)`, a separate Adam minimises :math:`\sum_i z_i \delta_i` over :math:`\xi`: tasks that
    improved less get more weight.

    The losses after a step are those of the next batch, which avoids an extra forward pass. (The
    original code evaluates the same batch again.) A task that was absent is compared with its last
    occurrence.

    Args:
        lr: Learning rate of that Adam; positive.
        weight_decay: Weight decay of the logits; not negative.
        lower_bounds: :math:`b_i` by task name; 0 by default.

    Raises:
        ArgumentError: If an argument is out of its range; when called, if a loss is not above its
            bound.

    Example:
        >>> balancer = FAMO(lr=0.5)
        >>> balancer.weights(torch.tensor([1.0, 3.0]))
        tensor([0.7500, 0.2500])
        >>> z = balancer.weights(torch.tensor([0.5, 3.0])) * torch.tensor([0.5, 3.0])
        >>> z / z.sum()  # the first loss has halved: the second gets more
        tensor([0.2689, 0.7311])

    References:
        Liu et al., *FAMO: Fast Adaptive Multitask Optimization*, NeurIPS 2023.
    """

    keeps_small_tasks = True

    def __init__(
        self,
        lr: float = 0.025,
        weight_decay: float = 1e-3,
        lower_bounds: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__()
        self.lr = positive("lr", lr)
        self.weight_decay = not_negative("weight_decay", weight_decay)
        self.lower_bounds = {str(k): float(v) for k, v in (lower_bounds or {}).items()}
        if not all(map(math.isfinite, self.lower_bounds.values())):
            raise ArgumentError(f"`lower_bounds` must be finite, got {self.lower_bounds}.")

    @override
    def balance(self, losses: Tensor, step: Step) -> Tensor:
        memory, names = self.memory(step), step.names
        bounds = losses.new_tensor([self.lower_bounds.get(name, 0.0) for name in names])
        check_positive("FAMO", losses - bounds, step)
        logs = (losses - bounds).log()
        logits = memory.recall("logits", names, torch.zeros_like(logs))
        if memory.steps > 1:
            decrease = memory.recall("logs", names, logs) - logs
            z = logits.softmax(dim=0)
            along = z * (decrease - z @ decrease)  # the gradient of softmax(logits) · decrease
            logits = adam_step(
                memory, "logits", names, logits, along, lr=self.lr, weight_decay=self.weight_decay
            )
        memory.keep("logs", names, logs)
        return (logits.log_softmax(dim=0) - logs).softmax(dim=0)  # z_i / (l_i - b_i), normalised
