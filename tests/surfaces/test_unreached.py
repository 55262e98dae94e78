"""Parameters that no loss reaches, under DDP: named at once, with a remedy that works."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, DistributedSampler

from lightning_jd.errors import ArgumentError, SetupError, ShapeError
from lightning_jd.surfaces import JacobianDescent, JDDDPStrategy
from tests.helpers.halves import assert_same_bits
from tests.helpers.lightning import Regression, batches, fit, moved, weights
from tests.helpers.two_processes import run_in_two_processes

DDP: dict[str, Any] = {"strategy": "ddp", "devices": 2, "max_epochs": 1}


class Unused(Regression):
    """Has a head that nobody uses."""

    def __init__(self, form: Any) -> None:
        super().__init__(form)
        self.unused = nn.Linear(3, 2)


class Absent(Regression):
    """A task with a head of its own is absent everywhere in every second batch."""

    def __init__(self) -> None:
        super().__init__("tasks")
        self.head = nn.Linear(3, 1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        x, y = batch
        out = self.net(x)
        losses = dict(zip("ab", (out - y).square().mean(dim=0)[:2], strict=True))
        if batch_idx % 2 == 0:
            losses["late"] = self.head(out).square().mean()
        return {"loss": losses}


def work(rank: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    unused = r"no loss of any process reaches 'unused\.weight', 'unused\.bias' in this batch\. Set"
    for form, settings, arguments in (
        ("tasks", {}, {}),
        ("instances", {}, {}),
        ("tasks", {"accumulation": "step"}, {"accumulate_grad_batches": 2}),
    ):
        callbacks = [JacobianDescent(**settings)]
        with pytest.raises(SetupError, match=unused):
            fit(Unused(form), batches(16, 2), callbacks=callbacks, **DDP, **arguments)
    with pytest.raises(SetupError, match=unused):
        fit(Unused("tasks"), batches(16, 2), **{**DDP, "strategy": JDDDPStrategy()})
    # The remedies work.
    finding = DDPStrategy(find_unused_parameters=True)
    module = Unused("tasks")
    fit(module, batches(16, 2), callbacks=[JacobianDescent()], **{**DDP, "strategy": finding})
    assert moved(module.net, Regression().net)
    assert_same_bits(weights(module))
    frozen = Unused("tasks")
    frozen.unused.requires_grad_(False)
    fit(frozen, batches(16, 2), callbacks=[JacobianDescent()], **DDP)
    # A task that is absent everywhere: the way out is named, and open.
    shared = r"'head\.weight', .* name the shared parameters by a pattern, such as params='trunk"
    with pytest.raises(SetupError, match=shared):
        fit(Absent(), batches(16, 2), callbacks=[JacobianDescent(params="shared")], **DDP)
    hidden = {**DDP, "strategy": DDPStrategy(find_unused_parameters=True)}
    with pytest.raises(SetupError, match="Use a name pattern as `params`; or remove the option"):
        fit(Absent(), batches(16, 2), callbacks=[JacobianDescent(params="shared")], **hidden)
    torch.manual_seed(0)
    module = Absent()
    open_way = {**DDP, "strategy": DDPStrategy(find_unused_parameters=True)}
    fit(module, batches(16, 2), callbacks=[JacobianDescent(params="net.*")], **open_way)
    assert_same_bits(weights(module))


@pytest.mark.slow
def test_parameters_that_no_loss_reaches(tmp_path: Path) -> None:
    run_in_two_processes(work, tmp_path)


# --- A process may have no row in some batches; the others go on, and all get the same update


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


def have_no_row(rank: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    for case, expected in torch.load(folder / "expected.pt").items():
        actual = train(*case)
        assert_close(actual, expected, rtol=0, atol=1e-10, msg=lambda m, c=case: f"{c}: {m}")
    with pytest.raises(ArgumentError, match="one has no loss at all"):
        train("tasks", 1, find_unused=True)


@pytest.mark.slow
def test_a_process_without_a_row(tmp_path: Path) -> None:
    torch.save({case: train(*case) for case in CASES}, tmp_path / "expected.pt")
    run_in_two_processes(have_no_row, tmp_path)


def test_one_process_must_have_a_row() -> None:
    class Nothing(Regression):
        def in_form(self, errors: Tensor) -> Any:
            return errors[:0].mean(dim=1)

    with pytest.raises(ShapeError, match="at least one loss"):
        fit(Nothing("instances"), callbacks=[JacobianDescent()])
