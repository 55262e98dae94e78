"""Image datasets in their official file formats: load a training split, draw the paper's subset."""

from collections.abc import Callable
from pathlib import Path

from lightning_jd.errors import UnknownNameError
from lightning_jd.experiments.data._cifar10 import load_cifar10
from lightning_jd.experiments.data._idx import load_fashion_mnist, load_mnist
from lightning_jd.experiments.data._images import Images, paper_subset

__all__ = ["DATASETS", "Images", "load", "paper_subset"]

DATASETS: dict[str, Callable[[Path], Images]] = {
    "cifar10": load_cifar10,
    "fashion-mnist": load_fashion_mnist,
    "mnist": load_mnist,
}


def load(dataset: str, folder: str | Path) -> Images:
    """Read the whole training split of a dataset.

    Args:
        dataset: ``"mnist"``, ``"fashion-mnist"`` or ``"cifar10"``.
        folder: Where the official files are. Nothing is ever downloaded.

    Raises:
        UnknownNameError: If there is no such dataset.
        ArgumentError: If a file is missing, damaged or cut short.
    """
    if dataset not in DATASETS:
        raise UnknownNameError.of("dataset", dataset, DATASETS)
    return DATASETS[dataset](Path(folder).expanduser())
