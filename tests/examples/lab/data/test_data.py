"""The readers of official formats, on small files of that format."""

import gzip
import struct
from pathlib import Path

import pytest
import torch
from torch import Tensor

from examples.lab.data import Images, load, paper_subset
from lightning_jd.errors import ArgumentError


def idx(entries: Tensor) -> bytes:
    shape = struct.pack(f">{entries.ndim}I", *entries.shape)
    return bytes([0, 0, 8, entries.ndim]) + shape + bytes(entries.flatten().tolist())


@pytest.fixture
def digits() -> Images:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (20, 1, 4, 3), generator=generator, dtype=torch.uint8)
    return Images(pixels, torch.arange(20) % 10)


@pytest.fixture
def folder(digits: Images, tmp_path: Path) -> Path:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(digits.images[:, 0]))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(digits.labels))
    return tmp_path


def cifar_records(labels: list[int]) -> bytes:
    return b"".join(
        bytes([label] + [10 * label] * 1024 + [1] * 1024 + [2] * 1024) for label in labels
    )


@pytest.mark.parametrize("dataset", ["mnist", "fashion-mnist"])
def test_raw_idx_files_are_read(dataset: str, folder: Path, digits: Images) -> None:
    data = load(dataset, folder)
    assert torch.equal(data.images, digits.images)
    assert torch.equal(data.labels, digits.labels)
    assert data.labels.dtype == torch.int64


def test_compressed_idx_files_are_read(folder: Path, digits: Images) -> None:
    for path in list(folder.iterdir()):
        (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert torch.equal(load("mnist", str(folder)).images, digits.images)


def test_cifar_batches_are_joined_and_planes_are_channels(tmp_path: Path) -> None:
    for i in range(1, 6):
        (tmp_path / f"data_batch_{i}.bin").write_bytes(cifar_records([i, 0]))
    data = load("cifar10", tmp_path)
    assert data.labels.tolist() == [1, 0, 2, 0, 3, 0, 4, 0, 5, 0]
    assert data.images.shape == (10, 3, 32, 32)
    assert data.images[2].flatten(start_dim=1).unique(dim=1).tolist() == [[20], [1], [2]]


def test_a_missing_file_is_named_with_its_project(tmp_path: Path) -> None:
    with pytest.raises(
        ArgumentError, match=r"train-images-idx3-ubyte.gz or .*has none of them.*Burges"
    ):
        load("mnist", tmp_path)
    with pytest.raises(ArgumentError, match=r"got .*nowhere, which is no folder.*zalandoresearch"):
        load("fashion-mnist", tmp_path / "nowhere")
    with pytest.raises(ArgumentError, match=r"data_batch_1.bin or .*Krizhevsky"):
        load("cifar10", tmp_path)


def test_the_whole_split_normalises_to_mean_zero_and_deviation_one(digits: Images) -> None:
    images, labels = paper_subset(digits, seed=3, size=20)
    assert images.dtype == torch.float32
    torch.testing.assert_close(images.mean(), torch.tensor(0.0), atol=1e-6, rtol=0)
    torch.testing.assert_close(images.std(correction=0), torch.tensor(1.0))
    assert sorted(labels.tolist()) == sorted(digits.labels.tolist())


def test_a_seed_decides_the_subset(digits: Images) -> None:
    first, again, other = (paper_subset(digits, seed=s, size=8) for s in (1, 1, 2))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])
