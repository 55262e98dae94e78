"""The RGB version of EuroSAT: a folder (or archive) per class, with JPEG images of 64 x 64."""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import torch
from torch import Tensor

from examples.lab.data._files import damaged
from examples.lab.data._images import Images
from lightning_jd.errors import ArgumentError, MissingDependencyError

CLASSES = (
    "AnnualCrop",
    "Forest",
    "HerbaceousVegetation",
    "Highway",
    "Industrial",
    "Pasture",
    "PermanentCrop",
    "Residential",
    "River",
    "SeaLake",
)
_ARCHIVES = ("EuroSAT_RGB.zip", "EuroSAT.zip")
_FOLDERS = ("EuroSAT_RGB", "2750", ".")
_ORIGIN = (
    "the RGB version of EuroSAT by Helber et al. (project phelber/EuroSAT; "
    "archive EuroSAT_RGB.zip or EuroSAT.zip)"
)


def load_eurosat(folder: Path) -> Images:
    """Read all images: there is no official split, so all of them are the training split.

    The archive is read as it is, or unpacked, whichever is there. Images are in the order of their
    classes and names.

    Raises:
        ArgumentError: If files are missing or damaged.
        MissingDependencyError: If Pillow, which reads JPEG, is not installed.
    """
    _check_pillow()
    for name in _ARCHIVES:
        if (folder / name).is_file():
            return _collected(_from_archive(folder / name), folder / name)
    for name in _FOLDERS:
        if all((folder / name / label).is_dir() for label in CLASSES):
            return _collected(_from_folders(folder / name), folder / name)
    state = "which has neither" if folder.is_dir() else "which is no folder"
    raise ArgumentError(
        f"`data` must be a folder with {' or '.join(_ARCHIVES)} or, unpacked, the ten folders "
        f"{CLASSES[0]} to {CLASSES[-1]}, got {folder}, {state}. The archive is {_ORIGIN}."
    )


def _from_folders(folder: Path) -> Iterator[tuple[int, Path, bytes]]:
    for number, label in enumerate(CLASSES):
        for path in sorted((folder / label).glob("*.jpg")):
            yield number, path, path.read_bytes()


def _from_archive(path: Path) -> Iterator[tuple[int, Path, bytes]]:
    try:
        with ZipFile(path) as archive:
            for name in sorted(archive.namelist()):
                *_, label, file = ("", "", *name.split("/"))
                if label in CLASSES and file.endswith(".jpg"):
                    yield CLASSES.index(label), path / name, archive.read(name)
    except (BadZipFile, EOFError, OSError) as error:
        raise damaged(path, f"cannot be unpacked ({error})", _ORIGIN) from error


def _collected(entries: Iterator[tuple[int, Path, bytes]], origin: Path) -> Images:
    images, labels = [], []
    for label, path, content in entries:
        images.append(_pixels(path, content))
        labels.append(label)
    if not images:
        raise damaged(origin, "has no .jpg image in the folders of the classes", _ORIGIN)
    return Images(torch.stack(images), torch.tensor(labels))


def _pixels(path: Path, content: bytes) -> Tensor:
    from PIL import Image

    try:
        image = Image.open(BytesIO(content)).convert("RGB")
    except OSError as error:  # what Pillow raises for damaged and for unknown files
        raise damaged(path, f"is no readable image ({error})", _ORIGIN) from error
    if image.size != (64, 64):
        raise damaged(path, f"is an image of {image.size}, not (64, 64)", _ORIGIN)
    flat = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return flat.reshape(64, 64, 3).permute(2, 0, 1).contiguous()


def _check_pillow() -> None:
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError.of("EuroSAT", "pillow", "plot") from error
