"""A random generator that belongs to the aggregator and is saved in checkpoints."""

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override


class OwnGenerator(nn.Module):
    """Mixin of the random aggregators: a private generator, saved in the state dict.

    The generator lives on the CPU whatever the device of the gradients is, so that all devices and
    all processes draw the same numbers and a checkpoint can be loaded on any of them. The global
    generators of torch are neither read nor advanced.

    Args:
        seed: The seed of the generator.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed
        self.generator = torch.Generator().manual_seed(seed)

    def reset(self) -> None:
        """Reseed the generator, for a new run."""
        self.generator.manual_seed(self.seed)

    @override
    def get_extra_state(self) -> Any:
        """The state of the generator, a tensor that ``torch.load(weights_only=True)`` accepts."""
        return self.generator.get_state()

    @override
    def set_extra_state(self, state: Any) -> None:
        """Restore the state of the generator."""
        self.generator.set_state(state.cpu())  # loading may have moved it with the model


def random_orders(m: int, generator: torch.Generator) -> Tensor:
    """For each row a random order of the others: row i has all indices but i, ``(m, m - 1)``."""
    keys = torch.rand(m, m, dtype=torch.float64, generator=generator)
    return keys.fill_diagonal_(2.0).argsort(dim=1)[:, :-1]  # 2 > 1 puts i last
