"""Two processes with a device each, and between them a group as strict as NCCL.

The trainings of ``tests/surfaces`` must give the weights of one process on the CPU, and the same
errors.
"""

import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch.testing import assert_close

from lightning_jd import JacobianDescent
from lightning_jd.errors import ReplicaError
from tests.helpers import lightning
from tests.helpers.halves import Runs, check, expect
from tests.pretended import DEVICE, host
from tests.pretended.lightning import on_device
from tests.pretended.processes import run_on_two_devices
from tests.surfaces import test_ddp, test_failing_process, test_fsdp, test_ranks


def trainer(**arguments: Any) -> L.Trainer:
    """The Trainer of all helpers, on the device."""
    return L.Trainer(**on_device(**{**lightning.QUIET, "max_epochs": 2, **arguments}))


def is_possible(name: str) -> bool:
    """What can be pretended.

    Dynamo does not trace the device; unused parameters and static graphs need pinned memory, which
    Python cannot offer for a device; and the runs with Fabric ask for a CPU.
    """
    impossible = ("compiled", "heads, True", "unused", "static", "fabric")
    return not any(word in name for word in impossible)


def runs() -> Runs:
    ranks = {name: (run, test_ranks.CLOSE) for name, run in test_ranks.runs().items()}
    return {name: run for name, run in (test_ddp.runs() | ranks).items() if is_possible(name)}


def work(rank: int, folder: Path) -> None:
    refuse_what_nccl_refuses()
    lightning.trainer = trainer
    # Lightning takes every device but a CPU for one of CUDA, with streams of its own.
    DDPStrategy.determine_ddp_device_ids = lambda self: None
    warnings.simplefilter("ignore")
    check(runs(), folder)
    in_pieces()
    differ()
    test_failing_process.fail_and_tell(rank, folder)


def refuse_what_nccl_refuses() -> None:
    x = torch.arange(1.0, 3.0, device=DEVICE)
    refused: dict[str, Any] = {
        "tensors must be on pretended": lambda: dist.all_reduce(torch.ones(2)),
        "the type must be one of NCCL's": lambda: dist.all_reduce(x.to(torch.int16)),
        "tensors must be contiguous": lambda: dist.all_reduce(torch.ones(2, 3, device=DEVICE).T),
        "cannot receive from whoever": lambda: dist.recv(x),
        "monitored_barrier is only implemented for GLOO": lambda: dist.monitored_barrier(),
    }
    for message, ask in refused.items():
        with pytest.raises((RuntimeError, ValueError), match=message):
            ask()


def in_pieces() -> None:
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


def differ() -> None:
    """A last bit that differs on one process is noticed, by sums computed on the device."""
    callbacks = [test_failing_process.Touched(), JacobianDescent(check_replicas=4)]
    module, ddp = lightning.Regression("tasks", lr=0.0), test_failing_process.DDP
    with pytest.raises(ReplicaError, match=r"got 1 of 4 that differ\. The first is 'net\.2\.weig"):
        lightning.fit(module, lightning.batches(24, 2), callbacks=callbacks, **ddp)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_two_processes_equal_one(tmp_path: Path) -> None:
    warnings.simplefilter("ignore")
    expect(runs(), tmp_path)
    run_on_two_devices(work, tmp_path)
