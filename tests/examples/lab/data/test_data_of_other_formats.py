"""The readers of MATLAB files, folders of JPEGs and NumPy archives, on small files of each."""

import gzip
import io
import struct
import sys
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
from lightning_jd.errors import ArgumentError, MissingDependencyError

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


@pytest.mark.parametrize("length", [0, 60, 200, 5000])
def test_a_truncated_svhn_file_is_named(length: int, svhn: Path) -> None:
    path = svhn / "train_32x32.mat"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(
        ArgumentError, match=r"train_32x32.mat (cannot be read as a MATLAB|has no v)"
    ):
        load("svhn", svhn)


def test_a_file_that_is_not_matlab_is_named(svhn: Path) -> None:
    (svhn / "train_32x32.mat").write_bytes(b"<html>not found</html>" * 20)
    with pytest.raises(ArgumentError, match=r"cannot be read as a MATLAB file .*Get this file"):
        load("svhn", svhn)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"X": random_bytes(32, 32, 3, 4)}, "has no variables X and y"),
        ({"X": random_bytes(32, 32, 3, 3), "y": LABELS}, r"uint8\(32, 32, 3, 3\) for 4 labels"),
        ({"X": np.zeros((32, 32, 3, 4)), "y": LABELS}, r"images float64"),
        ({"X": random_bytes(32, 32, 3, 4), "y": LABELS + 3}, "not from 1 to 10"),
    ],
)
def test_svhn_with_other_content_is_named(
    content: dict[str, np.ndarray], message: str, tmp_path: Path
) -> None:
    savemat(tmp_path / "train_32x32.mat", content)
    with pytest.raises(ArgumentError, match=message):
        load("svhn", tmp_path)


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


def test_a_damaged_eurosat_archive_is_named(eurosat: Path) -> None:
    path = eurosat / "EuroSAT.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(eurosat / "2750" / "River" / "River_1.jpg", "2750/River/River_1.jpg")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArgumentError, match=r"EuroSAT.zip cannot be unpacked"):
        load("eurosat", eurosat)
    path.write_bytes(whole[:200] + bytes(20) + whole[220:])
    with pytest.raises(ArgumentError, match=r"cannot be unpacked .*CRC"):
        load("eurosat", eurosat)
    with zipfile.ZipFile(path, "w"):
        pass
    with pytest.raises(ArgumentError, match=r"has no .jpg image"):
        load("eurosat", eurosat)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no readable image"),
        (b"<html>not found</html>", "is no readable image"),
        (jpeg((1, 2, 3))[:300], "is no readable image"),
        (jpeg((1, 2, 3), (32, 64)), r"is an image of \(32, 64\), not \(64, 64\)"),
    ],
)
def test_a_damaged_eurosat_image_is_named(content: bytes, message: str, eurosat: Path) -> None:
    (eurosat / "2750" / "Forest" / "Forest_2.jpg").write_bytes(content)
    with pytest.raises(ArgumentError, match=rf"Forest_2.jpg {message}"):
        load("eurosat", eurosat)


def test_eurosat_without_pillow_names_the_extra(
    eurosat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'lightning-jd\[plot\]'"):
        load("eurosat", eurosat)


def test_kuzushiji_is_read_from_numpy_archives(kuzushiji: Path) -> None:
    data = load("kuzushiji-mnist", kuzushiji)
    assert np.array_equal(data.images[:, 0].numpy(), random_bytes(5, 28, 28))
    assert data.labels.tolist() == [0, 1, 2, 3, 4]


def test_kuzushiji_is_read_from_idx(tmp_path: Path) -> None:
    pixels = random_bytes(5, 28, 28)
    for name, entries in (("images-idx3", pixels), ("labels-idx1", np.arange(5, dtype=np.uint8))):
        header = bytes([0, 0, 8, entries.ndim]) + struct.pack(f">{entries.ndim}I", *entries.shape)
        packed = gzip.compress(header + entries.tobytes())
        (tmp_path / f"train-{name}-ubyte.gz").write_bytes(packed)
    assert np.array_equal(load("kuzushiji-mnist", tmp_path).images[:, 0].numpy(), pixels)


def test_damaged_numpy_archives_are_named(kuzushiji: Path) -> None:
    path = kuzushiji / "kmnist-train-imgs.npz"
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"<html>not found</html>", b""):
        path.write_bytes(content)
        with pytest.raises(ArgumentError, match=r"imgs.npz cannot be read as a NumPy archive"):
            load("kuzushiji-mnist", kuzushiji)
    np.savez_compressed(path, random_bytes(5, 28))
    with pytest.raises(ArgumentError, match=r"uint8 with 2 dimensions, not bytes with 3"):
        load("kuzushiji-mnist", kuzushiji)
    np.savez_compressed(path, random_bytes(4, 28, 28))
    with pytest.raises(ArgumentError, match=r"has 5 labels for 4 images"):
        load("kuzushiji-mnist", kuzushiji)
    path.write_bytes(whole)
    np.savez_compressed(kuzushiji / "kmnist-train-labels.npz", np.full(5, 11, dtype=np.uint8))
    with pytest.raises(ArgumentError, match=r"has the label 11, beyond 9"):
        load("kuzushiji-mnist", kuzushiji)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ("svhn", r"train_32x32.mat, got .*has none of them.*ufldl.stanford.edu/housenumbers"),
        ("eurosat", r"EuroSAT_RGB.zip or EuroSAT.zip or, unpacked, .*phelber/EuroSAT"),
        ("kuzushiji-mnist", r"ubyte.*or kmnist-train-imgs.npz and .*codh.rois.ac.jp/kmnist"),
    ],
)
def test_what_is_missing_is_named_with_its_site(dataset: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        load(dataset, tmp_path)


@pytest.mark.parametrize("dataset", ["svhn", "eurosat", "kuzushiji"])
def test_the_images_fit_their_network(dataset: str, request: pytest.FixtureRequest) -> None:
    name = "kuzushiji-mnist" if dataset == "kuzushiji" else dataset
    images, labels = paper_subset(load(name, request.getfixturevalue(dataset)), seed=1, size=4)
    architecture = ARCHITECTURES[name]
    assert images.shape[1:] == INPUT_SHAPES[architecture]
    assert paper_cnn(architecture)(images).shape == (len(labels), 10)
