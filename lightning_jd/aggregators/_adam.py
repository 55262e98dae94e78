"""Adam on numbers that belong to tasks, its moments kept by their names."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_jd.aggregators._memory import Memory

_BETAS, _EPS = (0.9, 0.999), 1e-8  # those of torch.optim.Adam


def adam_step(
    memory: Memory,
    key: str,
    names: Sequence[str],
    value: Tensor,
    gradient: Tensor,
    *,
    lr: float,
    weight_decay: float = 0.0,
) -> Tensor:
    """Take one step, and keep the new value and the moments; those of other tasks stay.

    The moments of a task are corrected for the number of its own steps.

    Args:
        memory: Where everything is kept.
        key: What the numbers are; the moments are kept beside them.
        names: Their tasks.
        value: The numbers, shape (m,).
        gradient: Of what is minimised.
        lr: The learning rate.
        weight_decay: Added to the gradient, times the value, as in ``torch.optim.Adam``.

    Returns:
        The new numbers.

    Example:
        >>> adam_step(Memory(), "s", ("a",), torch.zeros(1), torch.ones(1), lr=0.1)
        tensor([-0.1000])
    """
    nothing = value.new_zeros(len(value), 3)
    count, first, second = memory.recall(f"{key}/adam", names, nothing).unbind(1)
    gradient = gradient + weight_decay * value if weight_decay else gradient
    count = count + 1
    first = first.lerp(gradient, 1 - _BETAS[0])
    second = second.lerp(gradient.square(), 1 - _BETAS[1])
    scale = (second / (1 - _BETAS[1] ** count)).sqrt() + _EPS
    value = value - lr * first / (1 - _BETAS[0] ** count) / scale
    memory.keep(key, names, value)
    memory.keep(f"{key}/adam", names, torch.stack([count, first, second], dim=1))
    return value
