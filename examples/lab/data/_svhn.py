"""The cropped digits of SVHN: a MATLAB file with X (32, 32, 3, N) and y (N, 1)."""

from pathlib import Path

import torch

from examples.lab.data._files import damaged, find
from examples.lab.data._images import Images

_NAME = "train_32x32.mat"
_ORIGIN = (
    "format 2 (cropped digits) of the Street View House Numbers dataset by Netzer et al. "
    "(Stanford University, ufldl.stanford.edu/housenumbers)"
)


def load_svhn(folder: Path) -> Images:
    """Read ``train_32x32.mat``; the label 10, which is the digit 0 there, becomes 0.

    Raises:
        ArgumentError: If the file is missing, damaged or something else.
    """
    from scipy.io import loadmat  # type: ignore[import-untyped]

    path = find(folder, (_NAME,), _ORIGIN)
    try:
        content = loadmat(path, variable_names=["X", "y"])
    except Exception as error:  # every kind of damage raises another kind of error
        raise damaged(path, f"cannot be read as a MATLAB file ({error})", _ORIGIN) from error
    if not {"X", "y"} <= content.keys():
        raise damaged(path, "has no variables X and y", _ORIGIN)
    images, labels = content["X"], content["y"].reshape(-1)
    if images.dtype != "uint8" or images.shape != (32, 32, 3, len(labels)):
        what = f"has images {images.dtype}{images.shape} for {len(labels)} labels"
        raise damaged(path, f"{what}, not uint8(32, 32, 3, {len(labels)})", _ORIGIN)
    if not len(labels) or labels.min() < 1 or labels.max() > 10:
        raise damaged(path, "has no labels, or some that are not from 1 to 10", _ORIGIN)
    pixels = torch.from_numpy(images.transpose(3, 2, 0, 1).copy())
    return Images(pixels, torch.from_numpy(labels.astype("int64")) % 10)
