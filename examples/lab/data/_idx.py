"""The idx format of MNIST and of the datasets that replace it file by file.

A file begins with two zero bytes, the type of the entries (8: unsigned byte), the number of
dimensions, and each dimension as a big-endian 32-bit integer; then come the entries.
"""

import struct
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from examples.lab.data._files import damaged, find, read
from examples.lab.data._images import Images

_UNSIGNED_BYTE = 8


def read_idx(path: Path, dimensions: int, origin: str) -> Tensor:
    """Read one idx file of unsigned bytes, raw or compressed.

    Raises:
        ArgumentError: If the file is damaged, cut short, or of another type.
    """
    content = read(path, origin)
    header = 4 + 4 * dimensions
    if content[:4] != bytes([0, 0, _UNSIGNED_BYTE, dimensions]) or len(content) < header:
        raise damaged(path, f"is no idx file of bytes with {dimensions} dimension(s)", origin)
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    expected = header + torch.Size(shape).numel()
    if len(content) != expected:
        what = f"has {len(content)} bytes where its header announces {expected}"
        raise damaged(path, what, origin)
    entries = torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=header)
    return entries.reshape(shape)


def load_idx_pair(folder: Path, origin: str, also: str = "", part: str = "train") -> Images:
    """Read the images and labels of a dataset in MNIST's layout.

    Args:
        folder: Where the files are.
        origin: What they are part of, for messages.
        also: Which other files would do, for messages.
        part: ``"train"``, or ``"t10k"`` for the test images.

    Raises:
        ArgumentError: If a file is missing or damaged, or the two do not belong together.
    """
    tensors = []
    for kind, dimensions in (("images", 3), ("labels", 1)):
        stems = (f"{part}-{kind}-idx{dimensions}-ubyte", f"{part}-{kind}.idx{dimensions}-ubyte")
        names = tuple(stem + end for stem in stems for end in (".gz", ""))
        path = find(folder, names, origin, also)
        tensors.append(read_idx(path, dimensions, origin))
    images, labels = tensors
    if len(images) != len(labels):
        what = f"has {len(labels)} labels for {len(images)} images"
        raise damaged(path, what, origin)
    if len(labels) and int(labels.max()) > 9:
        raise damaged(path, f"has the label {int(labels.max())}, beyond 9", origin)
    return Images(images.unsqueeze(1), labels.long())


load_mnist = partial(
    load_idx_pair,
    origin="the MNIST database of handwritten digits by LeCun, Cortes and Burges",
)
load_fashion_mnist = partial(
    load_idx_pair,
    origin="Fashion-MNIST by Zalando Research (project zalandoresearch/fashion-mnist)",
)
