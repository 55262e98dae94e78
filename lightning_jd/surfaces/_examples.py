"""Which examples are in conflict: what the updates of an epoch did to each of them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from lightning_jd.core import Pool
from lightning_jd.errors import ArgumentError, SetupError
from lightning_jd.surfaces._observe import Pass, Seen, angles_of, norms_of, worse_of

#: Name of a column to its values, one per example.
Table = dict[str, NDArray[Any]]

_IN_THE_BATCH = (
    "Put the index of each example into the batch, and set `examples` to its key, its position, or "
    "a function of the batch."
)
_VALUES = ("worse", "norm", "alignment", "loss")
_MANY = 256  # parts that are kept on the device before they are copied to the host


class Examples:
    """Collects index, norm, alignment and loss of each example in the updates of an epoch.

    All processes hold the same numbers, those of the examples of all.

    Args:
        source: Where the indices are: the value of the option.
    """

    def __init__(self, source: bool | int | str | Callable[[Any], Any]) -> None:
        self._source = source
        self._loaders: list[tuple[DataLoader[Any], str, Any]] = []  # with what they had before
        self._sampler: _Recorded | None = None
        self._indices: list[int] = []  # of the current batch
        self._pending: list[tuple[list[int], Tensor]] = []  # of the micro-batches of a step
        self.clear(-1)

    def clear(self, epoch: int) -> None:
        """Start the table of an epoch."""
        self._epoch = epoch
        self._parts: list[tuple[list[int], Tensor]] = []  # indices and values, (4, examples)

    @property
    def reads_sampler(self) -> bool:
        """Whether the indices are those that the sampler draws."""
        return self._source is True

    def watch(self, trainer: Any, original: Callable[[Any], Any], loader: Any) -> Any:
        """Replace ``strategy.process_dataloader``, which is ``original``.

        Raises:
            SetupError: If the indices of the training batches cannot be known from the sampler.
        """
        loader = original(loader)
        if not trainer.training:
            return loader
        dataset = getattr(loader, "dataset", None)
        if (
            not isinstance(loader, DataLoader)
            or type(loader).__iter__ is not DataLoader.__iter__  # it may skip batches
            or isinstance(dataset, IterableDataset)
            or not getattr(loader, "in_order", True)
        ):
            kind = type(loader).__name__
            kind += (
                f" over {type(dataset).__name__}" if isinstance(dataset, IterableDataset) else ""
            )
            raise SetupError(
                "examples=True requires one torch DataLoader with a sampler, and batches in its "
                f"order, got {kind}. {_IN_THE_BATCH}"
            )
        name = "sampler" if loader.batch_sampler is None else "batch_sampler"
        before = vars(loader)[name]
        if isinstance(before, _Recorded):  # the same loader, after another epoch
            return loader
        self._sampler = _Recorded(before, lambda: bool(trainer.training))
        vars(loader)[name] = self._sampler  # torch forbids the assignment, lest sizes disagree
        self._loaders.append((loader, name, before))
        return loader

    def release(self) -> None:
        """Give the loaders their samplers back."""
        for loader, name, before in self._loaders:
            vars(loader)[name] = before
        self._loaders.clear()
        self._pending.clear()
        self._sampler = None

    def check_loader(self, trainer: Any) -> None:
        """Raise an error if batches are not those of one loader.

        Raises:
            SetupError: With what was found.
        """
        fetcher = type(trainer.fit_loop._data_fetcher).__name__
        if fetcher == "_DataLoaderIterDataFetcher":
            raise SetupError(
                "`examples` requires `training_step(batch, batch_idx)`, got one that takes "
                "`dataloader_iter`, whose batches the callback cannot see."
            )
        if self.reads_sampler and not isinstance(trainer.train_dataloader, DataLoader):
            found = type(trainer.train_dataloader).__name__
            raise SetupError(
                f"examples=True requires one DataLoader, got a {found} of them. {_IN_THE_BATCH}"
            )

    def start(self, batch: Any, batch_idx: int) -> None:
        """Find the indices of the examples of a batch.

        Raises:
            ArgumentError: If they are not there, or no integers.
        """
        if self._sampler is not None and self.reads_sampler:
            found = self._sampler.of_batch(batch_idx)
            found = found if isinstance(found, Sequence | Tensor | np.ndarray) else [found]
        else:
            found = self._found_in(batch)
        self._indices = _integers(found)

    def _found_in(self, batch: Any) -> Any:
        source = self._source
        if callable(source):
            return source(batch)
        try:
            if isinstance(batch, Mapping) or isinstance(source, int):
                return batch[source]
            return getattr(batch, source)
        except (LookupError, TypeError, AttributeError) as error:
            inside = f" with {', '.join(map(repr, batch))}" if isinstance(batch, Mapping) else ""
            inside = f" of {len(batch)}" if isinstance(batch, (list, tuple)) else inside
            raise ArgumentError(
                f"`examples` must name what holds the indices in a batch, got {source!r} and a "
                f"batch that is a {type(batch).__name__}{inside}."
            ) from error

    def add(self, seen: Seen, *, first: bool, skips: bool) -> None:
        """Note the losses of a (micro-)batch.

        Args:
            seen: The losses.
            first: Whether they begin a step.
            skips: Whether losses that are not finite are left out.

        Raises:
            SetupError: If an objective is not the loss of one example.
        """
        if first:
            self._pending.clear()
        indices, values = self._indices, seen.values
        if seen.kind != "instances":
            raise SetupError(
                "`examples` requires one objective per example, got "
                f"{seen.kind.replace('_', ' x ')}. Return the vector of the losses of the examples "
                "(reduction='none'), or set split='instances'."
            )
        m = len(seen.names) or len(indices)
        if m != len(indices):
            raise SetupError(
                f"`examples` must give one index per loss, got {len(indices)} indices and {m} "
                "losses."
            )
        values = values if len(values) else seen.shown.new_full((m,), torch.nan)
        if skips:
            finite = values.isfinite()
            indices = [i for i, fine in zip(indices, finite.tolist(), strict=True) if fine]
            values = values[finite]
        self._pending.append((indices, values))

    def record(self, update: Pass, epoch: int) -> None:
        """Add an update, whose losses were noted before, to the table of its epoch."""
        if epoch != self._epoch:
            self.clear(epoch)
        report, pool = update.report, Pool(self._pending[0][1].device)
        indices = [i for some, _ in self._pending for i in some]
        losses = torch.cat([values for _, values in self._pending]).float()
        self._pending.clear()
        if pool.size > 1:  # the rows of a report are those of all processes
            parts = pool.gather((tuple(indices), tuple(losses.tolist())))
            indices = [i for part, _ in parts for i in part]
            losses = losses.new_tensor([value for _, part in parts for value in part])
        rows = [int(name) for name in report.names]
        if len(rows) < len(indices):  # some had gradients that are not finite
            indices, losses = [indices[row] for row in rows], losses[rows]
        unknown = torch.full_like(losses, torch.nan)
        angles, norms = angles_of(report), norms_of(report)
        known = [worse_of(angles), norms, None if angles is None else angles.cosines[1]]
        columns = [unknown if each is None else each.to(losses) for each in known]
        self._parts.append((indices, torch.stack([*columns, losses])))
        if len(self._parts) >= _MANY:
            self._parts = [self._joined()]

    def _joined(self) -> tuple[list[int], Tensor]:
        if not self._parts:
            return [], torch.zeros(len(_VALUES), 0)
        indices = [i for some, _ in self._parts for i in some]
        return indices, torch.cat([values for _, values in self._parts], dim=1).cpu()

    def table(self) -> Table:
        """One entry per example, ordered by index; each number is a mean over the steps."""
        indices, values = self._joined()
        index, place = np.unique(np.array(indices, dtype=np.int64), return_inverse=True)
        table: Table = {"index": index, "steps": np.bincount(place, minlength=len(index))}
        for name, column in zip(_VALUES, values.double().numpy(), strict=True):
            known = ~np.isnan(column)
            counts = np.bincount(place[known], minlength=len(index))
            sums = np.bincount(place[known], column[known], minlength=len(index))
            table[name] = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
        return table

    def worst(self, most: int) -> list[dict[str, float | None]]:
        """The examples that were made worse most often, the least aligned with the mean first."""
        table = self.table()
        order = np.lexsort((table["alignment"], -table["worse"]))[:most]
        rows = [{name: float(column[i]) for name, column in table.items()} for i in order]
        return [
            {name: None if value != value else value for name, value in row.items()} for row in rows
        ]

    def state_dict(self) -> dict[str, Any]:
        """The table of the epoch so far."""
        indices, values = self._joined()
        return {"epoch": self._epoch, "indices": torch.tensor(indices), "values": values}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of :meth:`state_dict`."""
        self.clear(state["epoch"])
        self._parts = [(state["indices"].tolist(), state["values"])]


class _Recorded:
    """A sampler that remembers what it has drawn for the training batches of an epoch."""

    def __init__(self, sampler: Any, is_training: Callable[[], bool]) -> None:
        self._sampler = sampler
        self._is_training = is_training
        self._drawn: list[Any] = []
        self._first: int | None = None  # number of the first batch, which a resumed epoch skips to

    def of_batch(self, batch_idx: int) -> Any:
        """What was drawn for a batch of the epoch; numbers of batches that are None are skipped."""
        self._first = batch_idx if self._first is None else self._first
        return self._drawn[batch_idx - self._first]

    def __iter__(self) -> Iterator[Any]:
        drawn: list[Any] = []
        if self._is_training():  # the same loader may be used for validation
            self._drawn, self._first = drawn, None
        for each in self._sampler:
            drawn.append(each)
            yield each

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_sampler"], name)


def _integers(found: Any) -> list[int]:
    values = found.tolist() if isinstance(found, Tensor | np.ndarray) else found
    try:
        return [operator.index(value) for value in values]
    except TypeError as error:
        raise ArgumentError(
            "`examples` must find one integer per example (a vector, array or list), got "
            f"{type(found).__name__} {str(found)[:80]}."
        ) from error
