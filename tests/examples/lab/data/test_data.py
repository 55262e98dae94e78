"""The readers of official formats, on small files of that format."""

import gzip
import struct
from pathlib import Path

import pytest
import torch
from torch import Tensor

from examples.lab.data import Images, load, paper_subset
from lightning_jd.errors import ArgumentError, UnknownNameError


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


def test_the_dotted_names_of_some_mirrors_are_read(folder: Path, digits: Images) -> None:
    for path in list(folder.iterdir()):
        path.rename(folder / path.name.replace("-idx", ".idx"))
    assert torch.equal(load("mnist", folder).labels, digits.labels)


def test_cifar_batches_are_joined_and_planes_are_channels(tmp_path: Path) -> None:
    for i in range(1, 6):
        (tmp_path / f"data_batch_{i}.bin").write_bytes(cifar_records([i, 0]))
    data = load("cifar10", tmp_path)
    assert data.labels.tolist() == [1, 0, 2, 0, 3, 0, 4, 0, 5, 0]
    assert data.images.shape == (10, 3, 32, 32)
    assert data.images[2].flatten(start_dim=1).unique(dim=1).tolist() == [[20], [1], [2]]


def test_an_incomplete_cifar_split_is_used_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-bin").mkdir()
    (tmp_path / "cifar-10-batches-bin" / "data_batch_2.bin").write_bytes(cifar_records([3]))
    with pytest.warns(UserWarning, match=r"incomplete: .* has no data_batch_1.bin, data_batch_3"):
        data = load("cifar10", tmp_path)
    assert data.labels.tolist() == [3]


def test_a_missing_file_is_named_with_its_project(tmp_path: Path) -> None:
    with pytest.raises(
        ArgumentError, match=r"train-images-idx3-ubyte.gz or .*has none of them.*Burges"
    ):
        load("mnist", tmp_path)
    with pytest.raises(ArgumentError, match=r"got .*nowhere, which is no folder.*zalandoresearch"):
        load("fashion-mnist", tmp_path / "nowhere")
    with pytest.raises(ArgumentError, match=r"data_batch_1.bin or .*Krizhevsky"):
        load("cifar10", tmp_path)


def test_a_truncated_raw_file_is_named(folder: Path) -> None:
    path = folder / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ArgumentError, match=r"has 251 bytes where its header announces 256"):
        load("mnist", folder)


def test_a_truncated_archive_is_named(folder: Path) -> None:
    path = folder / "train-images-idx3-ubyte"
    (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes())[:-12])
    with pytest.raises(ArgumentError, match=r"ubyte.gz cannot be unpacked .*Get this file again"):
        load("mnist", folder)


@pytest.mark.parametrize("content", [b"<html>not found</html>", b"\0\0", b"\0\0\x08\x03\0\0"])
def test_a_file_that_is_not_idx_is_named(content: bytes, folder: Path) -> None:
    (folder / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(ArgumentError, match=r"is no idx file of bytes with 3 dimension"):
        load("mnist", folder)
    (folder / "train-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(ArgumentError, match=r"cannot be unpacked"):
        load("mnist", folder)


def test_images_and_labels_must_belong_together(folder: Path, digits: Images) -> None:
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(digits.labels[:7]))
    with pytest.raises(ArgumentError, match=r"has 7 labels for 20 images"):
        load("mnist", folder)


@pytest.mark.filterwarnings("ignore:The training split of CIFAR-10 is incomplete")
def test_a_damaged_cifar_batch_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(cifar_records([1])[:-1])
    with pytest.raises(ArgumentError, match=r"3072 bytes, which is no multiple of a record's 3073"):
        load("cifar10", tmp_path)
    path.write_bytes(bytes([77]) + cifar_records([1])[1:])
    with pytest.raises(ArgumentError, match=r"has the label 77, beyond 9"):
        load("cifar10", tmp_path)


def test_an_unknown_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"'mnist', .*got 'mnst'. Did you mean 'mnist'"):
        load("mnst", tmp_path)


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


def test_a_constant_channel_becomes_zero() -> None:
    data = Images(torch.full((4, 1, 2, 2), 7, dtype=torch.uint8), torch.zeros(4, dtype=torch.long))
    images, _ = paper_subset(data, seed=0, size=4)
    torch.testing.assert_close(images, torch.zeros(4, 1, 2, 2))


@pytest.mark.parametrize("size", [0, 21])
def test_a_subset_of_impossible_size_is_refused(size: int, digits: Images) -> None:
    with pytest.raises(ArgumentError, match=rf"from 1 to 20 \(all images\), got {size}"):
        paper_subset(digits, seed=0, size=size)
