"""Two processes with a device each, and between them a group as strict as NCCL.

What is run are the trainings of ``tests/integration``, on the device: they must give the weights of
one process on the CPU, and the same errors.
"""

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
from lightning.pytorch.strategies import DDPStrategy
from torch.testing import assert_close

from lightning_jd import JacobianDescent
from lightning_jd.errors import ReplicaError
from tests.helpers import lightning
from tests.helpers.halves import Runs, check, expect
from tests.integration import test_ddp, test_failing_process, test_fsdp, test_ranks
from tests.pretended import DEVICE, host
from tests.pretended.lightning import on_device
from tests.pretended.processes import run_on_two_devices


def trainer(**arguments: Any) -> L.Trainer:
    """The Trainer of all helpers, on the device."""
    return L.Trainer(**on_device(**{**lightning.QUIET, "max_epochs": 2, **arguments}))


def on_the_device(work: Callable[[int, Path], None], rank: int, folder: Path) -> None:
    lightning.trainer = trainer
    # Lightning takes every device but a CPU for one of CUDA, with streams of its own.
    DDPStrategy.determine_ddp_device_ids = lambda self: None
    warnings.simplefilter("ignore")
    work(rank, folder)


def is_possible(name: str) -> bool:
    """What can be pretended.

    Dynamo does not trace the device; unused parameters and static graphs need pinned memory, which
    Python cannot offer for a device; and the runs with Fabric ask for a CPU.
    """
    impossible = ("compiled", "heads, True", "unused", "static", "fabric")
    return not any(word in name for word in impossible)


def ddp_runs() -> Runs:
    return {name: run for name, run in test_ddp.runs().items() if is_possible(name)}


def ranks_runs() -> Runs:
    found = test_ranks.runs()
    return {name: (run, test_ranks.CLOSE) for name, run in found.items() if is_possible(name)}


def check_ddp(rank: int, folder: Path) -> None:
    check(ddp_runs(), folder)


def check_ranks(rank: int, folder: Path) -> None:
    check(ranks_runs(), folder)


@pytest.mark.parametrize(
    ("runs", "work"),
    [(ddp_runs, check_ddp), (ranks_runs, check_ranks)],
    ids=["ddp and jd_ddp", "ranks"],
)
def test_two_processes_equal_one(runs: Any, work: Any, tmp_path: Path) -> None:
    warnings.simplefilter("ignore")
    expect(runs(), tmp_path)
    run_on_two_devices(partial(on_the_device, work), tmp_path)


def in_pieces(rank: int, folder: Path) -> None:
    """FSDP2 on the device gives the weights of DDP on the device."""
    cut = test_fsdp.shard
    # It would move the parameters itself, in a way that only tensors of one class can.
    test_fsdp.shard = lambda module, mesh: cut(module.to(DEVICE), mesh)
    for name, (arguments, tolerance) in test_fsdp.RUNS.items():
        if is_possible(name):
            pieces = test_fsdp.train(test_fsdp.in_pieces(), **arguments)
            assert all(tensor.device == DEVICE for tensor in pieces.parameters())
            found = {name: host(tensor) for name, tensor in test_fsdp.whole(pieces).items()}
            entire = test_fsdp.train({"strategy": "ddp"}, **arguments)
            expected = test_fsdp.whole(entire)
            assert_close(found, expected, **tolerance, msg=lambda m, n=name: f"{n}: {m}")


def test_parameters_in_pieces_give_the_weights_of_whole_ones(tmp_path: Path) -> None:
    run_on_two_devices(partial(on_the_device, in_pieces), tmp_path)


def differ(rank: int, folder: Path) -> None:
    """A last bit that differs on one process is noticed, by sums computed on the device."""
    callbacks = [test_failing_process.Touched(), JacobianDescent(check_replicas=4)]
    module, ddp = lightning.Regression("tasks", lr=0.0), test_failing_process.DDP
    with pytest.raises(ReplicaError, match=r"got 1 of 4 that differ\. The first is 'net\.2\.weig"):
        lightning.fit(module, lightning.batches(24, 2), callbacks=callbacks, **ddp)


@pytest.mark.parametrize(
    ("work", "mortal"),
    [
        (test_failing_process.fail_and_tell, None),
        (test_failing_process.die, 1),
        (differ, None),
    ],
    ids=["fails", "dies", "differs"],
)
def test_a_process_that(work: Any, mortal: int | None, tmp_path: Path) -> None:
    run_on_two_devices(partial(on_the_device, work), tmp_path, mortal=mortal)
