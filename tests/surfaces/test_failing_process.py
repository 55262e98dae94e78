"""A process that fails, or that has other parameters, ends all of them with a clear error."""

import os
import time
import warnings
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch import Callback
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lightning_jd.core.processes import _roll_call
from lightning_jd.core.processes._replicas import check_replicas, checksum
from lightning_jd.errors import ArgumentError, PeerError, ReplicaError, ShapeError
from lightning_jd.surfaces import JacobianDescent, JDDDPStrategy
from tests.helpers.halves import assert_same_bits
from tests.helpers.lightning import ManualRegression, Regression, batches, fit, weights
from tests.helpers.two_processes import run_in_two_processes

DDP: dict[str, Any] = {"strategy": "ddp", "devices": 2, "max_epochs": 1}
#: Much less than a process waits for another one by itself.
SOON = 60.0


class FailingStep(Regression):
    """The second process fails in its third batch."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        if dist.get_rank() == 1 and batch_idx == 2:
            raise KeyError("a label that nobody has seen before")
        return super().training_step(batch, batch_idx)


class FailingManually(FailingStep, ManualRegression):
    pass


class FailingData(Dataset[Any]):
    """The second process cannot read its sixth sample."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        if dist.get_rank() == 1 and index >= 5:
            raise OSError(f"sample {index} is damaged")
        return tuple(batches(16).dataset[index])


class FailingHook(Callback):
    def on_train_batch_end(self, *args: Any) -> None:
        if dist.get_rank() == 1:
            raise ArithmeticError("in a hook")


class FailingLosses(Regression):
    """The losses of the second process are not of the kind that those of the first are."""

    def in_form(self, errors: Tensor) -> Any:
        return errors.mean(dim=1) if dist.get_rank() == 1 else super().in_form(errors)


class Undecided(Regression):
    """In its third batch, the second process has a scalar and the first has more, or vice versa."""

    def __init__(self, form: Any, scalar_rank: int) -> None:
        super().__init__(form)
        self.scalar_rank, self.batch = scalar_rank, -1

    def in_form(self, errors: Tensor) -> Any:
        self.batch += 1
        if self.batch == 2 and dist.get_rank() == self.scalar_rank:
            return errors.mean()
        return super().in_form(errors)


class UndecidedManually(ManualRegression, Undecided):
    pass


def failing_weights(gramian: Tensor) -> Tensor:
    class LocalError(Exception):
        pass

    raise LocalError("an error that cannot be sent, because nobody else has its class")


def failing_runs() -> Iterator[tuple[type[Exception], str, Any]]:
    """What the second process raises, how the first quotes it, and the run."""

    def run(module: Regression, data: Any = None, *callbacks: Callback, **arguments: Any) -> Any:
        settings = arguments.pop("settings", {})
        return lambda: fit(
            module,
            data or batches(16, 2),
            callbacks=[JacobianDescent(**settings), *callbacks],
            **{**DDP, **arguments},
        )

    step = "process 1 has failed: KeyError: 'a label that nobody has seen before'"
    for form in ("tasks", "instances"):
        yield KeyError, step, run(FailingStep(form))
    yield KeyError, step, run(FailingManually("tasks"))
    whole_step = {"accumulation": "step"}
    yield KeyError, step, run(FailingStep("tasks"), settings=whole_step, accumulate_grad_batches=4)
    loader = DataLoader(FailingData(), batch_size=2)
    yield OSError, "process 1 has failed: OSError: sample", run(Regression("tasks"), loader)


def fail_and_tell(rank: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    for own, quoted, run in failing_runs():
        begin = time.perf_counter()
        with pytest.raises(own if rank else PeerError) as caught:
            run()
        assert time.perf_counter() - begin < SOON
        if rank == 0:
            assert quoted in str(caught.value)
    # What all processes can see raises the same error on all of them.
    two_tasks = {"aggregator": {"name": "krum", "n_byzantine": 1}}
    with pytest.raises(ShapeError, match="requires at least 2"):
        fit(Regression("tasks"), batches(16, 2), callbacks=[JacobianDescent(**two_tasks)], **DDP)
    failing = {"callbacks": [JacobianDescent(failing_weights)], **DDP}
    with pytest.raises(Exception, match="cannot be sent"):  # only the first process asks it
        fit(Regression("tasks"), batches(16, 2), **failing)
    with pytest.raises(ArgumentError, match="must be of one kind"):
        fit(FailingLosses("tasks"), batches(16, 2), callbacks=[JacobianDescent()], **DDP)
    for cls, form, strategy in (
        (Undecided, "instances", "ddp"),
        (Undecided, "tasks", "jd_ddp"),
        (UndecidedManually, "instances", "ddp"),
    ):
        for scalar_rank in (0, 1):
            ours = [] if strategy == "jd_ddp" else [JacobianDescent()]
            found = "one scalar" if rank == scalar_rank else "several losses"
            arguments = {**DDP, "strategy": strategy, "callbacks": ours}
            with pytest.raises(ArgumentError, match=f"got {found} on process {rank}"):
                fit(cls(form, scalar_rank), batches(16, 2), **arguments)
    # And the processes are still in step.
    module = Regression("tasks")
    fit(module, batches(16, 2), callbacks=[JacobianDescent()], **DDP)
    assert_same_bits(weights(module))


@pytest.mark.slow
def test_a_process_that_fails_tells_the_others(tmp_path: Path) -> None:
    run_in_two_processes(fail_and_tell, tmp_path)


def die(rank: int, folder: Path) -> None:
    """An error between two steps, where the first process is not at a roll call."""
    warnings.simplefilter("ignore")
    _roll_call.PATIENCE = timedelta(seconds=1)
    begin = time.perf_counter()
    noted = "does not answer: process 1 has failed: ArithmeticError: in a hook"
    callbacks = [JacobianDescent(), FailingHook()]
    try:
        with pytest.raises(RuntimeError, match=noted):
            fit(Regression("tasks"), batches(16, 2), callbacks=callbacks, **DDP)
    except ArithmeticError:
        os._exit(1)
    assert time.perf_counter() - begin < SOON


@pytest.mark.slow
def test_a_process_that_dies_does_not_leave_the_others_waiting(tmp_path: Path) -> None:
    run_in_two_processes(die, tmp_path, mortal=1)


class Touched(Callback):
    """After the third step, one process gets another last bit in one number."""

    def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
        if dist.get_rank() == 1 and trainer.global_step == 3:
            with torch.no_grad():
                entry = module.net[2].weight[0, 0]
                entry.copy_(torch.nextafter(entry, torch.tensor(torch.inf)))


def let_replicas_differ(rank: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    message = r"got 1 of 4 that differ\. The first is 'net\.2\.weight', which process 1"

    def run(settings: dict[str, Any], strategy: bool = False) -> None:
        callbacks: list[Callback] = [Touched()]
        arguments = dict(DDP)
        if strategy:
            arguments["strategy"] = JDDDPStrategy(**settings)
        else:
            callbacks.append(JacobianDescent(**settings))
        fit(Regression("tasks", lr=0.0), batches(24, 2), callbacks=callbacks, **arguments)

    for strategy in (False, True):
        with pytest.raises(ReplicaError, match=message):
            run({"check_replicas": 4}, strategy)
    run({"check_replicas": 100})  # looks after the first step, and not again in this run
    run({"check_replicas": 0})
    equal = [("a", torch.ones(3)), ("b", torch.arange(4))]
    check_replicas(equal)
    with pytest.raises(ReplicaError, match=r"got 2 of 3 that differ\. The first is 'c'"):
        check_replicas([("c", torch.full((2,), rank)), equal[0], ("d", torch.full((2,), rank))])


@pytest.mark.slow
def test_replicas_that_differ_are_noticed(tmp_path: Path) -> None:
    run_in_two_processes(let_replicas_differ, tmp_path)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.complex64, torch.int8, torch.bool]
)
def test_every_bit_counts(dtype: torch.dtype) -> None:
    tensor = torch.ones(5, 3).to(dtype)
    sums = {int(checksum(tensor))}
    for i in range(tensor.numel()):
        changed = tensor.clone()
        changed.view(torch.uint8).view(-1)[i * tensor.element_size()] ^= 1
        sums.add(int(checksum(changed)))
    assert len(sums) == tensor.numel() + 1
    assert int(checksum(tensor.clone())) in sums
    assert int(checksum(torch.ones(3, 5).to(dtype).T)) in sums  # the layout does not matter


@pytest.mark.parametrize("every", [-1, 1.5, True])
def test_the_number_of_steps_is_checked(every: Any) -> None:
    with pytest.raises(ArgumentError, match="`check_replicas` must be a number of steps, or 0"):
        JacobianDescent(check_replicas=every)
