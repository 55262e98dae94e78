"""MultiMNIST: two digits on one image, composed from the official files of MNIST.

A different image is drawn for each image; one goes to the upper left of a canvas of 36x36, the
other to the lower right, and where they overlap the brighter pixel counts.

References:
    Sabour, Frosst, Hinton: *Dynamic Routing Between Capsules*, NeurIPS 2017;
    Sener, Koltun: *Multi-Task Learning as Multi-Objective Optimization*, NeurIPS 2018.
"""

from pathlib import Path

import torch
from torch import Tensor

from examples.lab.data._idx import load_idx_pair
from examples.lab.data._images import Images
from examples.lab.data.multitask._parts import Multitask, Part, Task, shuffled

_CANVAS = 36
_VALIDATION = 10_000  # the last of the 60,000 training images
_ORIGIN = "the MNIST database of handwritten digits by LeCun, Cortes and Burges"
_MEAN, _DEVIATION = 0.1307, 0.3081  # of MNIST's pixels, the published values


def load_multimnist(folder: Path) -> Multitask:
    """Compose all pairs; validation and test pairs share no digit with those of training.

    Raises:
        ArgumentError: If a file is missing or damaged.
    """
    train, test = (load_idx_pair(folder, _ORIGIN, part=part) for part in ("train", "t10k"))
    split = max(1, len(train.labels) - min(_VALIDATION, len(train.labels) // 6))
    parts = [
        composed(Images(train.images[:split], train.labels[:split]), seed=0),
        composed(Images(train.images[split:], train.labels[split:]), seed=1),
        composed(test, seed=2),
    ]
    tasks = (Task("left", "classes", 10), Task("right", "classes", 10))
    return Multitask(tasks, *parts)


def composed(digits: Images, seed: int) -> Part:
    """Give every digit a partner, drawn at random, and overlay the two.

    Returns:
        Images (n, 1, 36, 36), normalised, and the labels of the left and of the right digit.
    """
    n, _, height, width = digits.images.shape
    first, second = shuffled(n, seed), shuffled(n, seed + 1000)
    canvas = torch.zeros(n, 1, _CANVAS, _CANVAS, dtype=torch.uint8)
    canvas[:, :, :height, :width] = digits.images[first]
    lower = canvas[:, :, -height:, -width:]
    torch.maximum(lower, digits.images[second], out=lower)
    targets: dict[str, Tensor] = {"left": digits.labels[first], "right": digits.labels[second]}
    return Part(((canvas.float() / 255 - _MEAN) / _DEVIATION,), targets)
