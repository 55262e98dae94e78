"""The four convolutional networks of the paper's experiments, and how long each is trained.

References:
    Quinton and Rey, *Jacobian Descent for Multi-Objective Optimization*, arXiv:2406.16232,
    appendix "Experimental settings".
"""

from typing import Literal, get_args

from torch import nn

from lightning_jd.errors import UnknownNameError

Architecture = Literal["svhn", "cifar10", "eurosat", "mnist"]

#: (channels, height, width) of the images that each network takes.
INPUT_SHAPES: dict[Architecture, tuple[int, int, int]] = {
    "svhn": (3, 32, 32),
    "cifar10": (3, 32, 32),
    "eurosat": (3, 64, 64),
    "mnist": (1, 28, 28),
}

#: The network of each of the paper's six datasets.
ARCHITECTURES: dict[str, Architecture] = {
    "svhn": "svhn",
    "cifar10": "cifar10",
    "eurosat": "eurosat",
    "mnist": "mnist",
    "fashion-mnist": "mnist",
    "kuzushiji-mnist": "mnist",
}

#: Epochs of 32 steps (1,024 images in batches of 32) that the paper trains for on each dataset.
EPOCHS: dict[str, int] = {
    "svhn": 25,
    "cifar10": 20,
    "eurosat": 30,
    "mnist": 8,
    "fashion-mnist": 25,
    "kuzushiji-mnist": 10,
}

#: The same for Adam, which is faster; the paper tells only of the first two.
ADAM_EPOCHS: dict[str, int] = EPOCHS | {"svhn": 20, "cifar10": 15}


def paper_cnn(name: Architecture) -> nn.Sequential:
    """Build a network of the paper, with PyTorch's default initialisation.

    Three convolutions (3x3, stride 1, no padding), two linear layers, ELU; 10 classes.

    Args:
        name: ``"svhn"``, ``"cifar10"``, ``"eurosat"`` or ``"mnist"`` (which also serves
            Fashion-MNIST and Kuzushiji-MNIST).

    Raises:
        UnknownNameError: If there is no such network.

    Example:
        >>> import torch
        >>> paper_cnn("mnist")(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """
    if name not in get_args(Architecture):
        raise UnknownNameError.of("name", str(name), get_args(Architecture))
    if name == "svhn":
        body = _early_activation(3, (16, 32, 32), groups=(1, 16, 32))
        return nn.Sequential(*body, *_classifier(512, 64))
    if name == "cifar10":
        body = _early_activation(3, (32, 64, 64), groups=(1, 32, 64))
        return nn.Sequential(*body, *_classifier(1024, 128))
    if name == "mnist":
        body = _early_activation(1, (32, 64, 64), groups=(1, 1, 1))
        return nn.Sequential(*body, *_classifier(576, 128))
    return nn.Sequential(  # EuroSAT's images are larger: a third pooling, before the first ELU
        nn.Conv2d(3, 32, 3),
        nn.MaxPool2d(2),
        nn.ELU(),
        nn.Conv2d(32, 64, 3, groups=32),
        nn.MaxPool2d(2),
        nn.ELU(),
        nn.Conv2d(64, 64, 3, groups=64),
        nn.MaxPool2d(3),
        nn.ELU(),
        *_classifier(1024, 128),
    )


def narrow_paper_cnn(width: int, *, grouped: bool) -> nn.Sequential:
    """The layers of CIFAR-10's network, with few channels, for images of 3x16x16.

    Args:
        width: The number of channels, and of hidden units.
        grouped: Whether the last two convolutions have groups, as on CIFAR-10, or not, as on MNIST.
    """
    groups = (1, width, width) if grouped else (1, 1, 1)
    body = _early_activation(3, (width, width, width), groups)
    return nn.Sequential(*body, *_classifier(width, width))


def _early_activation(
    channels: int, widths: tuple[int, int, int], groups: tuple[int, int, int]
) -> list[nn.Module]:
    first, second, third = widths
    return [
        nn.Conv2d(channels, first, 3, groups=groups[0]),
        nn.ELU(),
        nn.Conv2d(first, second, 3, groups=groups[1]),
        nn.MaxPool2d(2),
        nn.ELU(),
        nn.Conv2d(second, third, 3, groups=groups[2]),
        nn.MaxPool2d(3),
        nn.ELU(),
    ]


def _classifier(features: int, hidden: int) -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(features, hidden), nn.ELU(), nn.Linear(hidden, 10)]
