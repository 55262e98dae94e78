"""A process may have no row in some batches; the others go on, and all get the same update."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.testing import assert_close
from torch.utils.data import DataLoader, DistributedSampler

from lightning_jd.errors import ArgumentError, ShapeError
from lightning_jd.surfaces import JacobianDescent
from tests.helpers.lightning import Regression, batches, fit, weights
from tests.helpers.two_processes import run_in_two_processes

FORMS = ("instances", "matrix", "tasks")


class SometimesNothing(Regression):
    """In every second batch, the odd samples have no loss. They are those of the second process."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        errors = self.errors(batch)
        if batch_idx % 2 == 0:
            return self.in_form(errors)
        if not dist.is_initialized():
            return self.in_form(errors[::2])
        if dist.get_rank() == 0:
            return self.in_form(errors)
        if self.form == "tasks":
            return {"loss": {"a": None, "b": None, "c": None}}
        return self.in_form(errors[:0])


def train(form: Any, accumulate: int, find_unused: bool) -> dict[str, Tensor]:
    data: Any = batches(n=16)
    arguments: dict[str, Any] = {}
    if dist.is_initialized():
        own = DistributedSampler(data.dataset, shuffle=False)  # Lightning would shuffle
        data = DataLoader(data.dataset, batch_size=2, sampler=own)
        strategy = DDPStrategy(find_unused_parameters=find_unused)
        arguments = {"strategy": strategy, "devices": 2}
    module = SometimesNothing(form)
    options: Any = {"accumulation": "step"} if accumulate > 1 else {}
    callbacks = [JacobianDescent("upgrad", **options)]
    arguments |= {"precision": "64-true", "accumulate_grad_batches": accumulate}
    fit(module, data, callbacks=callbacks, **arguments)
    return weights(module)


#: Micro-batches of tasks are counted alike, whoever has them: two processes have other ones. And a
#: dict of `None` has no graph, without which DDP waits if it is to find unused parameters.
CASES = [(form, k, unused) for form in FORMS for k in (1, 2) for unused in (False, True)]
CASES = [case for case in CASES if case[0] != "tasks" or case[1:] == (1, False)]


def work(rank: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    for case, expected in torch.load(folder / "expected.pt").items():
        actual = train(*case)
        assert_close(actual, expected, rtol=0, atol=1e-10, msg=lambda m, c=case: f"{c}: {m}")
    with pytest.raises(ArgumentError, match="one has no loss at all"):
        train("tasks", 1, find_unused=True)


@pytest.mark.slow
def test_a_process_without_a_row(tmp_path: Path) -> None:
    torch.save({case: train(*case) for case in CASES}, tmp_path / "expected.pt")
    run_in_two_processes(work, tmp_path)


def test_one_process_must_have_a_row() -> None:
    class Nothing(Regression):
        def in_form(self, errors: Tensor) -> Any:
            return errors[:0].mean(dim=1)

    with pytest.raises(ShapeError, match="at least one loss"):
        fit(Nothing("instances"), callbacks=[JacobianDescent()])
