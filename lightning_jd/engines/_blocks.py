"""The Gramian of a data set, block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler

from lightning_jd.engines._gradients import Half, cross
from lightning_jd.engines._objectives import Losses, Objectives
from lightning_jd.engines._parameters import NamedParameters, Parameters, whole_parameters_of
from lightning_jd.engines.tape import Tape
from lightning_jd.errors import ArgumentError, SetupError, ShapeError


def gramian_of_data(
    losses_of: Callable[[Any], Losses],
    params: Parameters,
    batches: Iterable[Any],
    *,
    other: Iterable[Any] | None = None,
    folder: str | Path | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Tensor:
    r"""Inner products of the gradients of all examples of a data set, batch by batch.

    Each pair of batches is a block :func:`~lightning_jd.gramian` of two sets of losses. For b
    batches that is b (b + 1) / 2 forward and backward passes (b c for c other batches), and the
    memory of two batches beside that of the result.

    Args:
        losses_of: From a batch to its losses, one per example; the model as a rule in the state
            of ``model.eval()``.
        params: A module, tensors or (name, tensor) pairs.
        batches: A loader that gives the same batches each time it is iterated over.
        other: Another loader, such as that of the validation data: the columns of the result.
        folder: Finished blocks are written here, and read by a call that continues. They belong to
            the values of the parameters; the data must be the same.
        progress: Called with the number of finished blocks and of all blocks.

    Returns:
        Shape (examples, examples), or (examples, other examples), on the CPU.

    Raises:
        ArgumentError: If a loader can be iterated over only once, or shuffles.
        SetupError: If the folder has blocks of other parameters.
        ShapeError: If a loader gives no batch, or batches of other sizes in another iteration.
        GraphError: As :func:`~lightning_jd.gramian`.

    Example:
        >>> model, x = torch.nn.Linear(3, 1), torch.randn(10, 3)
        >>> losses_of = lambda batch: model(batch).square().sum(dim=1)
        >>> gramian_of_data(losses_of, model, x.split(4)).shape
        torch.Size([10, 10])
    """
    for name, loader in (("batches", batches), ("other", other)):
        _check_repeatable(name, loader)
    named = whole_parameters_of(params)
    store = _Store(folder, named)
    columns = batches if other is None else other
    counts = [sum(1 for _ in loader) for loader in (batches, columns)]
    if 0 in counts:
        raise ShapeError("The loaders must give at least one batch, got none.")

    def half(batch: Any) -> Half:
        with torch.enable_grad():
            return Half.of(Tape(Objectives.of(losses_of(batch)), named, memory="low"))

    total, done = counts[0] * counts[1], 0
    if other is None:
        total = counts[0] * (counts[0] + 1) // 2
    rows: list[list[Tensor]] = []
    for i, batch in enumerate(batches):
        row = [rows[j][i].T for j in range(i)] if other is None else []
        first = len(row)
        here: Half | None = None
        for j, another in enumerate(columns):
            if j < first:
                continue
            if (block := store.read(i, j)) is None:
                here = half(batch) if here is None else here
                block = cross(here, here if other is None and i == j else half(another)).cpu()
                store.write(i, j, block)
            row.append(block)
            done += 1
            if progress is not None:
                progress(done, total)
        rows.append(row)
    heights = {(i, block.shape[0]) for i, row in enumerate(rows) for block in row}
    widths = {(j, block.shape[1]) for row in rows for j, block in enumerate(row)}
    if (len(heights), len(widths)) != (counts[0], counts[1]):
        raise ShapeError(
            "The loaders must give the same batches in each iteration, got other sizes. Pass "
            "shuffle=False, and a data set whose length does not change."
        )
    return torch.cat([torch.cat(row, dim=1) for row in rows])


def _check_repeatable(name: str, loader: Iterable[Any] | None) -> None:
    if loader is not None and iter(loader) is loader:
        raise ArgumentError(
            f"`{name}` must be a loader or list, got {type(loader).__name__}, which can be "
            "iterated over only once. Pass list(...)."
        )
    if isinstance(loader, DataLoader) and isinstance(loader.sampler, RandomSampler):
        raise ArgumentError(
            f"`{name}` must give the same batches in each iteration, got a loader that shuffles. "
            "Pass shuffle=False."
        )


class _Store:
    """Blocks in a folder; nothing without one."""

    def __init__(self, folder: str | Path | None, named: NamedParameters) -> None:
        self._folder = None if folder is None else Path(folder)
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        digest, owner = _digest(named), self._folder / "parameters.txt"
        if not owner.exists():
            owner.write_text(digest)
        elif owner.read_text() != digest:
            raise SetupError(
                f"`folder` must have blocks of these parameters or none, got {str(self._folder)!r} "
                "with those of other values. Load the same checkpoint, or choose another folder."
            )

    def read(self, i: int, j: int) -> Tensor | None:
        """A finished block."""
        path = self._path(i, j)
        if path is None or not path.exists():
            return None
        block: Tensor = torch.load(path, weights_only=True)
        return block

    def write(self, i: int, j: int, block: Tensor) -> None:
        """Write a block such that it is there as a whole, or not."""
        if (path := self._path(i, j)) is not None:
            torch.save(block, part := path.with_suffix(".part"))
            part.replace(path)

    def _path(self, i: int, j: int) -> Path | None:
        return None if self._folder is None else self._folder / f"block_{i}_{j}.pt"


def _digest(named: NamedParameters) -> str:
    found = sha256()
    for name, tensor in named:
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        flat = tensor.detach().cpu().reshape(-1).contiguous()
        found.update(flat.view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
