"""Find and read the files of a dataset, with messages that say what to get, and from whom."""

import gzip
import zlib
from pathlib import Path

from lightning_jd.errors import ArgumentError


def find(folder: Path, names: tuple[str, ...], origin: str, also: str = "") -> Path:
    """The first of ``names`` that exists in ``folder``.

    Args:
        folder: Where to look.
        names: What the file may be called.
        origin: What it is part of, for the message.
        also: What else would do, for the message.

    Raises:
        ArgumentError: If none does.
    """
    for name in names:
        if (folder / name).is_file():
            return folder / name
    state = "which has none of them" if folder.is_dir() else "which is no folder"
    raise ArgumentError(
        f"`data` must be a folder with the file {' or '.join(names)}{also}, got {folder}, {state}. "
        f"The file is part of {origin}."
    )


def read(path: Path, origin: str) -> bytes:
    """The bytes of a file, unpacked if its name ends in ``.gz``.

    Raises:
        ArgumentError: If the compressed file is damaged or cut short.
    """
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        return gzip.decompress(path.read_bytes())
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise damaged(path, f"cannot be unpacked ({error})", origin) from error


def damaged(path: Path, what: str, origin: str) -> ArgumentError:
    """The error for a file that exists but cannot be what its name says."""
    return ArgumentError(
        f"`data` must hold the official files, but {path} {what}. "
        f"Get this file again; it is part of {origin}."
    )
