"""Images and labels in memory, and the subset that the paper trains on."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_jd.errors import ArgumentError


@dataclass(frozen=True)
class Images:
    """A training split: ``images`` (N, channels, height, width) bytes, ``labels`` (N,) in 0..9."""

    images: Tensor
    labels: Tensor

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each channel over all images, pixels scaled to [0, 1].

        Example:
            >>> images = torch.tensor([0, 255], dtype=torch.uint8).reshape(2, 1, 1, 1)
            >>> Images(images, torch.tensor([0, 1])).moments()
            (tensor([0.5000], dtype=torch.float64), tensor([0.5000], dtype=torch.float64))
        """
        # From the histogram of each channel: exact, and no copy of the split in floating point.
        values = torch.arange(256, dtype=torch.float64) / 255
        channels = self.images.transpose(0, 1).flatten(start_dim=1)
        counts = torch.stack([torch.bincount(channel, minlength=256) for channel in channels])
        shares = counts / counts.sum(dim=1, keepdim=True).double()
        means = shares @ values
        return means, (shares @ values.square() - means.square()).clamp(min=0).sqrt()


def paper_subset(data: Images, seed: int, size: int = 1024) -> tuple[Tensor, Tensor]:
    """Draw the training set of one random rerun, normalised per channel as in the paper.

    Args:
        data: The whole training split: its means and standard deviations normalise the subset.
        seed: The number of the rerun; the same seed gives the same images.
        size: How many images, drawn without replacement.

    Returns:
        Images (size, channels, height, width) in float32, and labels (size,).

    Raises:
        ArgumentError: If the split has fewer than ``size`` images.
    """
    available = len(data.labels)
    if not 1 <= size <= available:
        raise ArgumentError(f"`size` must be from 1 to {available} (all images), got {size}.")
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(available, generator=generator)[:size]
    means, deviations = (moment.float()[:, None, None] for moment in data.moments())
    # A channel that never changes carries nothing: leave it at zero instead of dividing by zero.
    scale = torch.where(deviations > 0, deviations, torch.ones_like(deviations))
    return (data.images[chosen].float() / 255 - means) / scale, data.labels[chosen]
