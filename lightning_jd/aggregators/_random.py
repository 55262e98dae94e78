"""Randomness that belongs to the aggregator and survives a checkpoint."""

from typing import Any

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

    def reset(self) -> None:
        """Go back to the start of the stream, for a new run."""
        self.generator.manual_seed(self.seed)

    @override
    def get_extra_state(self) -> Any:
        """The position in the stream: a tensor, so that ``torch.load`` needs no pickle."""
        return self.generator.get_state()

    @override
    def set_extra_state(self, state: Any) -> None:
        """Continue the stream where ``state`` was taken."""
        self.generator.set_state(state.cpu())  # loading may have moved it with the model


def random_orders(m: int, generator: torch.Generator) -> Tensor:
    """For each row a random order of the others: row i has all indices but i, ``(m, m - 1)``."""
    keys = torch.rand(m, m, dtype=torch.float64, generator=generator)
    return keys.fill_diagonal_(2.0).argsort(dim=1)[:, :-1]  # 2 > 1 puts i last
