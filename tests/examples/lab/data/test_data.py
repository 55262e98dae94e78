"""The readers of official formats, on small files of that format."""

import gzip
import io
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from torch import Tensor

from examples.lab.data import Images, load, paper_subset
from examples.lab.data._eurosat import CLASSES
from examples.lab.work.paper import ARCHITECTURES, INPUT_SHAPES, paper_cnn


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


def test_the_whole_split_normalises_to_mean_zero_and_deviation_one(digits: Images) -> None:
    images, labels = paper_subset(digits, seed=3, size=20)
    assert images.dtype == torch.float32
    torch.testing.assert_close(images.mean(), torch.tensor(0.0), atol=1e-6, rtol=0)
    torch.testing.assert_close(images.std(correction=0), torch.tensor(1.0))
    assert sorted(labels.tolist()) == sorted(digits.labels.tolist())


def jpeg(colour: tuple[int, int, int]) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (64, 64), colour).save(stream, "JPEG", quality=95)
    return stream.getvalue()


def test_matlab_files_jpegs_and_numpy_archives_are_read_and_fit_their_network(
    tmp_path: Path,
) -> None:
    generator = np.random.default_rng(0)
    X = generator.integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
    savemat(tmp_path / "train_32x32.mat", {"X": X, "y": np.array([[1], [2], [10], [4]])})
    for number, label in enumerate(CLASSES):
        (tmp_path / "2750" / label).mkdir(parents=True)
        (tmp_path / "2750" / label / f"{label}_1.jpg").write_bytes(jpeg((20 * number, 100, 200)))
    characters = generator.integers(0, 256, (5, 28, 28), dtype=np.uint8)
    np.savez_compressed(tmp_path / "kmnist-train-imgs.npz", characters)
    np.savez_compressed(tmp_path / "kmnist-train-labels.npz", np.arange(5, dtype=np.uint8))
    found = {name: load(name, tmp_path) for name in ("svhn", "eurosat", "kuzushiji-mnist")}
    assert found["svhn"].labels.tolist() == [1, 2, 0, 4]
    assert int(found["svhn"].images[3, 2, 5, 7]) == X[5, 7, 2, 3]
    assert found["eurosat"].labels.tolist() == list(range(10))
    means = found["eurosat"].images[7].float().mean(dim=(1, 2))  # Residential
    torch.testing.assert_close(means, torch.tensor([140.0, 100.0, 200.0]), atol=3, rtol=0)
    assert np.array_equal(found["kuzushiji-mnist"].images[:, 0].numpy(), characters)
    for name, data in found.items():
        images, labels = paper_subset(data, seed=1, size=4)
        architecture = ARCHITECTURES[name]
        assert images.shape[1:] == INPUT_SHAPES[architecture]
        assert paper_cnn(architecture)(images).shape == (len(labels), 10)
