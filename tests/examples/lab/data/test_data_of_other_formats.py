"""The readers of MATLAB files, folders of JPEGs and NumPy archives, on small files of each."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from examples.lab.data import load, paper_subset
from examples.lab.data._eurosat import CLASSES
from examples.lab.work.paper import ARCHITECTURES, INPUT_SHAPES, paper_cnn

LABELS = np.array([1, 2, 10, 4], dtype=np.uint8)


def random_bytes(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture
def svhn(tmp_path: Path) -> Path:
    savemat(tmp_path / "train_32x32.mat", {"X": random_bytes(32, 32, 3, 4), "y": LABELS[:, None]})
    return tmp_path


def jpeg(colour: tuple[int, int, int], size: tuple[int, int] = (64, 64)) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, colour).save(stream, "JPEG", quality=95)
    return stream.getvalue()


@pytest.fixture
def eurosat(tmp_path: Path) -> Path:
    for number, label in enumerate(CLASSES):
        folder = tmp_path / "2750" / label
        folder.mkdir(parents=True)
        for i in (1, 2):
            (folder / f"{label}_{i}.jpg").write_bytes(jpeg((20 * number, 100, 200)))
    return tmp_path


@pytest.fixture
def kuzushiji(tmp_path: Path) -> Path:
    np.savez_compressed(tmp_path / "kmnist-train-imgs.npz", random_bytes(5, 28, 28))
    np.savez_compressed(tmp_path / "kmnist-train-labels.npz", np.arange(5, dtype=np.uint8))
    return tmp_path


def test_svhn_is_transposed_and_ten_is_zero(svhn: Path) -> None:
    data = load("svhn", svhn)
    assert data.labels.tolist() == [1, 2, 0, 4]
    assert data.images.shape == (4, 3, 32, 32)
    X = random_bytes(32, 32, 3, 4)
    assert int(data.images[3, 2, 5, 7]) == X[5, 7, 2, 3]


def test_eurosat_is_read_from_folders(eurosat: Path) -> None:
    data = load("eurosat", eurosat)
    assert data.labels.tolist() == [label for label in range(10) for _ in range(2)]
    assert data.images.shape == (20, 3, 64, 64)
    means = data.images[14].float().mean(dim=(1, 2))  # Residential
    torch.testing.assert_close(means, torch.tensor([140.0, 100.0, 200.0]), atol=3, rtol=0)


def test_eurosat_is_read_from_its_archive(eurosat: Path) -> None:
    expected = load("eurosat", eurosat)
    with zipfile.ZipFile(eurosat / "EuroSAT.zip", "w") as archive:
        for path in (eurosat / "2750").rglob("*.jpg"):
            archive.write(path, path.relative_to(eurosat))
        archive.writestr("2750/README.txt", "not an image")
    data = load("eurosat", eurosat)
    assert torch.equal(data.images, expected.images)
    assert torch.equal(data.labels, expected.labels)


def test_kuzushiji_is_read_from_numpy_archives(kuzushiji: Path) -> None:
    data = load("kuzushiji-mnist", kuzushiji)
    assert np.array_equal(data.images[:, 0].numpy(), random_bytes(5, 28, 28))
    assert data.labels.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("dataset", ["svhn", "eurosat", "kuzushiji"])
def test_the_images_fit_their_network(dataset: str, request: pytest.FixtureRequest) -> None:
    name = "kuzushiji-mnist" if dataset == "kuzushiji" else dataset
    images, labels = paper_subset(load(name, request.getfixturevalue(dataset)), seed=1, size=4)
    architecture = ARCHITECTURES[name]
    assert images.shape[1:] == INPUT_SHAPES[architecture]
    assert paper_cnn(architecture)(images).shape == (len(labels), 10)
