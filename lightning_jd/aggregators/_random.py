"""Randomness that belongs to the aggregator and survives a checkpoint."""

import torch
from torch import Tensor, nn
from typing_extensions import override


class OwnGenerator(nn.Module):
    """Mixin of the random aggregators: a generator of their own, saved in the state dict.

    The generator lives on the CPU whatever the device of the gradients is, so that all devices and
    all processes draw the same numbers and a checkpoint can be loaded on any of them. The global
    generators of torch are neither read nor advanced.

    Args:
        seed: Start of the stream.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed
        self.generator = torch.Generator().manual_seed(seed)

    @override
    def get_extra_state(self) -> Tensor:
        """The position in the stream: a tensor, so that ``torch.load`` needs no pickle."""
        return self.generator.get_state()

    @override
    def set_extra_state(self, state: Tensor) -> None:
        """Continue the stream where ``state`` was taken."""
        self.generator.set_state(state.cpu())  # loading may have moved it with the model
