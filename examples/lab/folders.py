"""Folders for results: whether they can be written is known before the work, not after it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from lightning_jd.errors import ArgumentError


def writable_folder(path: str | Path, name: str = "output") -> Path:
    """Make a folder, with its parents, and make sure that files can be written there.

    Args:
        path: The folder.
        name: What the user calls it.

    Raises:
        ArgumentError: If that is not possible.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise ArgumentError(
            f"`{name}` must be a folder that can be written to, got {str(path)!r}: {reason}. "
            "Choose another one."
        ) from error
    return folder
