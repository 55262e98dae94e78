"""Two processes on half batches against one process on whole batches."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing import assert_close
from torch.utils.data import DataLoader, DistributedSampler

from tests.helpers.lightning import batches
from tests.helpers.two_processes import run_in_two_processes

#: A training, which gives its weights, and how close they are to those of one process.
Run = tuple[Callable[[], dict[str, Tensor]], dict[str, float]]
Runs = Mapping[str, Run]


def shared_batches(n: int = 16) -> DataLoader[tuple[Tensor, ...]]:
    """Samples in batches of 4, of which each of two processes gets 2, in the same order."""
    whole = batches(n=n)
    if not dist.is_initialized():
        return whole
    own = DistributedSampler(whole.dataset, shuffle=False)  # Lightning would shuffle
    return DataLoader(whole.dataset, batch_size=2, sampler=own)


def expect(runs: Runs, folder: Path) -> None:
    """Do all runs in this process and save their weights for the two."""
    torch.save({name: run() for name, (run, _) in runs.items()}, folder / "expected.pt")


def check(runs: Runs, folder: Path) -> None:
    """Do all runs in two processes: bit-equal on both, and close to what one process has saved."""
    expected = torch.load(folder / "expected.pt")
    for name, (run, tolerance) in runs.items():
        actual = run()
        assert_same_bits(actual, name)
        assert_close(actual, expected[name], **tolerance, msg=lambda m, n=name: f"{n}: {m}")


def assert_same_bits(tensors: dict[str, Tensor], name: str = "") -> None:
    """The tensors of both processes are equal."""
    both: list[Any] = [None, None]
    dist.all_gather_object(both, tensors)
    assert_close(both[0], both[1], rtol=0, atol=0, msg=lambda m: f"{name}: {m}")


def assert_halves_equal_the_whole(
    work: Callable[[int, Path], None], runs: Runs, path: Path
) -> None:
    """Run everything in one process, then ``work``, which calls :func:`check`, in two."""
    expect(runs, path)
    run_in_two_processes(work, path)
