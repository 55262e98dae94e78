"""Image datasets in their official file formats: load a training split, draw the paper's subset."""

from collections.abc import Callable
from pathlib import Path

from examples.lab.data._cifar10 import load_cifar10
from examples.lab.data._eurosat import load_eurosat
from examples.lab.data._idx import load_fashion_mnist, load_mnist
from examples.lab.data._images import Images, paper_subset
from examples.lab.data._kuzushiji import load_kuzushiji_mnist
from examples.lab.data._svhn import load_svhn
from lightning_jd.errors import UnknownNameError

__all__ = ["DATASETS", "Images", "load", "paper_subset"]

DATASETS: dict[str, Callable[[Path], Images]] = {
    "cifar10": load_cifar10,
    "eurosat": load_eurosat,
    "fashion-mnist": load_fashion_mnist,
    "kuzushiji-mnist": load_kuzushiji_mnist,
    "mnist": load_mnist,
    "svhn": load_svhn,
}


def load(dataset: str, folder: str | Path) -> Images:
    """Read the whole training split of a dataset.

    Args:
        dataset: One of :data:`DATASETS`, the six of the paper.
        folder: Where the official files are. Nothing is ever downloaded.

    Raises:
        UnknownNameError: If there is no such dataset.
        ArgumentError: If a file is missing, damaged or cut short.
        MissingDependencyError: If what reads its format is not installed.
    """
    if dataset not in DATASETS:
        raise UnknownNameError.of("dataset", dataset, DATASETS)
    return DATASETS[dataset](Path(folder).expanduser())
