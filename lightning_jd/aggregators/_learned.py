"""Balancers that learn one number per task with an Adam of their own."""

from abc import abstractmethod

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._adam import adam_step
from lightning_jd.aggregators._arguments import positive
from lightning_jd.aggregators._balancer import Balancer
from lightning_jd.aggregators._memory import Stateful
from lightning_jd.aggregators._step import Step


class LearnedBalancer(Stateful, Balancer):
    """Learns a number :math:`s` per task, from zero; its Adam is part of the state dict.

    The optimizer of the module is not concerned. Weights are those before the step of Adam, as if
    one optimizer had taken both steps at once. A subclass defines :meth:`learn`.

    Args:
        lr: Learning rate of that Adam; positive.

    Raises:
        ArgumentError: If the learning rate is not positive and finite.
    """

    def __init__(self, lr: float = 1e-3) -> None:
        super().__init__()
        self.lr = positive("lr", lr)

    @abstractmethod
    def learn(self, s: Tensor, losses: Tensor) -> tuple[Tensor, Tensor]:
        """The weights of the losses, and the gradient of the objective with respect to ``s``."""

    @override
    def balance(self, losses: Tensor, step: Step) -> Tensor:
        memory = self.memory(step)
        s = memory.recall("s", step.names, torch.zeros_like(losses))
        weights, gradient = self.learn(s, losses)
        adam_step(memory, "s", step.names, s, gradient, lr=self.lr)
        return weights
