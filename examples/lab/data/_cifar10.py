"""The binary version of CIFAR-10: records of one label byte and 3 x 32 x 32 bytes of colour."""

import warnings
from pathlib import Path

import torch
from torch import Tensor

from examples.lab.data._files import damaged, find, read
from examples.lab.data._images import Images

_RECORD = 1 + 3 * 32 * 32
_NAMES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
_ORIGIN = (
    "the binary version of CIFAR-10 by Krizhevsky, Nair and Hinton (University of Toronto), "
    "which unpacks into the folder cifar-10-batches-bin"
)


def load_cifar10(folder: Path) -> Images:
    """Read the training batches, from ``folder`` or its sub-folder ``cifar-10-batches-bin``.

    Fewer than the five batches are accepted, with a warning: the subset is then drawn, and the
    means are taken, over these.

    Raises:
        ArgumentError: If there is no batch, or one is damaged.
    """
    nested = folder / "cifar-10-batches-bin"
    if nested.is_dir():
        folder = nested
    missing = [name for name in _NAMES if not (folder / name).is_file()]
    if len(missing) == len(_NAMES):
        find(folder, _NAMES, _ORIGIN)  # raises with the message of every dataset
    if missing:
        warnings.warn(
            f"The training split of CIFAR-10 is incomplete: {folder} has no {', '.join(missing)}. "
            "Only the batches that are there are used.",
            stacklevel=2,
        )
    records = torch.cat([_records(folder / name) for name in _NAMES if name not in missing])
    return Images(records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].long())


def _records(path: Path) -> Tensor:
    content = read(path, _ORIGIN)
    if not content or len(content) % _RECORD:
        what = f"has {len(content)} bytes, which is no multiple of a record's {_RECORD}"
        raise damaged(path, what, _ORIGIN)
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(-1, _RECORD)
    if int(records[:, 0].max()) > 9:
        raise damaged(path, f"has the label {int(records[:, 0].max())}, beyond 9", _ORIGIN)
    return records
