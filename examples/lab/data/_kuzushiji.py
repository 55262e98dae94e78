"""Kuzushiji-MNIST: in the format of MNIST, or as NumPy archives."""

from pathlib import Path

import torch
from torch import Tensor

from examples.lab.data._files import damaged, find
from examples.lab.data._idx import load_idx_pair
from examples.lab.data._images import Images

_ORIGIN = (
    "Kuzushiji-MNIST by the Center for Open Data in the Humanities (codh.rois.ac.jp/kmnist, "
    "project rois-codh/kmnist)"
)
_IMAGES, _LABELS = "kmnist-train-imgs.npz", "kmnist-train-labels.npz"


def load_kuzushiji_mnist(folder: Path) -> Images:
    """Read the training images and labels, from ``.npz`` files if they are there, else from idx.

    Raises:
        ArgumentError: If a file is missing or damaged, or the two do not belong together.
    """
    if not (folder / _IMAGES).is_file():
        return load_idx_pair(folder, origin=_ORIGIN, also=f", or {_IMAGES} and {_LABELS}")
    images = _entries(folder / _IMAGES, dimensions=3)
    path = find(folder, (_LABELS,), _ORIGIN)
    labels = _entries(path, dimensions=1)
    if len(images) != len(labels):
        raise damaged(path, f"has {len(labels)} labels for {len(images)} images", _ORIGIN)
    if len(labels) and int(labels.max()) > 9:
        raise damaged(path, f"has the label {int(labels.max())}, beyond 9", _ORIGIN)
    return Images(images.unsqueeze(1), labels.long())


def _entries(path: Path, dimensions: int) -> Tensor:
    import numpy as np

    try:
        # Opened here: np.load leaves the file of a damaged archive open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            entries = archive["arr_0"]
    except Exception as error:  # damage to a zip archive has many faces
        raise damaged(path, f"cannot be read as a NumPy archive ({error})", _ORIGIN) from error
    if entries.dtype != np.uint8 or entries.ndim != dimensions:
        what = f"has {entries.dtype} with {entries.ndim} dimensions, not bytes with {dimensions}"
        raise damaged(path, what, _ORIGIN)
    return torch.from_numpy(entries)
