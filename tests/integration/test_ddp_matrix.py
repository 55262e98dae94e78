"""Some steps of two processes on half batches are those of one process on whole batches.

Every kind of rows x two aggregators x callback and strategy x both accumulations; precisions and
options are cells of `test_ddp.py`.
"""

import warnings
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from lightning_jd.surfaces import JacobianDescent, JDDDPStrategy
from tests.helpers.halves import Run, assert_halves_equal_the_whole, assert_same_bits, check
from tests.helpers.lightning import Regression, ResumableLoader, batches, fit, moved, weights
from tests.helpers.two_processes import run_in_two_processes

KINDS = ["tasks", "instances", "ranks"]
AGGREGATORS = ["upgrad", "graddrop"]  # by the Gramian and by the Jacobian
SURFACES = ["callback", "strategy"]
ACCUMULATIONS = ["batch", "step"]
STEPS, PIECES, HALF = 4, 2, 2  # micro-batches per step, samples of one process in each


class Rows(Regression):
    """Losses of any kind; one process has those of both ranks as two tasks."""

    def in_form(self, errors: Tensor) -> Any:
        if self.form != "scalar":
            return super().in_form(errors)
        if dist.is_initialized():
            return errors.mean()
        return {"loss": {str(rank): half.mean() for rank, half in enumerate(errors.chunk(2))}}


def module(kind: str, **arguments: Any) -> Rows:
    form: Any = "scalar" if kind == "ranks" else kind
    return Rows(form, **arguments or {"lr": 0.02})


def own_data(kind: str, accumulation: str, dtype: torch.dtype, cls: Any = DataLoader) -> Any:
    """The samples of this process, or of both in the order in which the rows of two come."""
    x, y = (tensor.to(dtype) for tensor in batches(n=STEPS * PIECES * 2 * HALF).dataset.tensors)
    shape = (STEPS, PIECES, 2, HALF)  # step, micro-batch, rank, sample
    order = torch.arange(len(x)).view(shape)
    if dist.is_initialized():
        return cls(
            TensorDataset(*(t[order[:, :, dist.get_rank()].flatten()] for t in (x, y))), HALF
        )
    if kind == "instances" and accumulation == "step":
        order = order.transpose(1, 2)  # all micro-batches of one rank, then those of the other
    return cls(TensorDataset(*(t[order.flatten()] for t in (x, y))), 2 * HALF)


def surface(name: str, **settings: Any) -> dict[str, Any]:
    if not dist.is_initialized():
        if settings.get("rows") == "ranks":
            settings["rows"] = "tasks"
        return {"callbacks": [JacobianDescent(**settings)]}
    common = {"devices": 2, "use_distributed_sampler": False}
    if name == "strategy":
        return {"strategy": JDDDPStrategy(**settings), **common}
    return {"strategy": "ddp", "callbacks": [JacobianDescent(**settings)], **common}


def train(kind: str, aggregator: str, name: str, accumulation: str) -> dict[str, Tensor]:
    trained = module(kind).double()
    settings = {"aggregator": aggregator, "accumulation": accumulation}
    if kind == "ranks":
        settings["rows"] = "ranks"
    run = fit(
        trained,
        own_data(kind, accumulation, torch.float64),
        max_epochs=1,
        accumulate_grad_batches=PIECES,
        **surface(name, **settings),
    )
    assert run.global_step == STEPS
    assert moved(trained, module(kind).double())
    return weights(trained)


@cache
def train_alone(kind: str, aggregator: str, *how: str) -> dict[str, Tensor]:
    """One process, for which both surfaces are the callback: once is enough."""
    return train(kind, aggregator, "callback", *how)


def train_cell(kind: str, aggregator: str, name: str, *how: str) -> dict[str, Tensor]:
    if dist.is_initialized():
        return train(kind, aggregator, name, *how)
    return train_alone(kind, aggregator, *how)


def exact_runs() -> dict[str, Run]:
    cells = product(KINDS, AGGREGATORS, SURFACES, ACCUMULATIONS)
    tolerance = {"rtol": 0.0, "atol": 1e-6}
    return {", ".join(cell): (lambda cell=cell: train_cell(*cell), tolerance) for cell in cells}


def check_exact(rank: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    check(exact_runs(), folder)


@pytest.mark.slow
def test_every_cell(tmp_path: Path) -> None:
    assert_halves_equal_the_whole(check_exact, exact_runs(), tmp_path)


def resume(rank: int, folder: Path) -> None:
    """In the middle of an epoch, with momentum and an aggregator that draws random numbers."""
    warnings.simplefilter("ignore")
    for kind, name, accumulation in product(KINDS, SURFACES[1:], ACCUMULATIONS):

        def run(kind: str = kind, name: str = name, how: str = accumulation, **more: Any) -> Any:
            trained = module(kind, lr=0.02, momentum=0.9)
            rows = {"rows": "ranks"} if kind == "ranks" else {}
            arguments = surface(name, aggregator="rgw", accumulation=how, **rows)
            callbacks = [*arguments.pop("callbacks", []), *more.pop("callbacks", [])]
            fit(
                trained,
                own_data(kind, how, torch.float32, ResumableLoader),
                max_epochs=1,
                accumulate_grad_batches=PIECES,
                callbacks=callbacks,
                **arguments,
                **more,
            )
            return weights(trained)

        uninterrupted = run()
        saving = ModelCheckpoint(
            folder / kind / name / accumulation,
            "{step}",
            every_n_train_steps=STEPS // 2,
            save_top_k=-1,
        )
        run(callbacks=[saving], enable_checkpointing=True, max_steps=STEPS // 2)
        resumed = run(ckpt_path=Path(saving.dirpath or "") / f"step={STEPS // 2}.ckpt")
        torch.testing.assert_close(resumed, uninterrupted, rtol=0, atol=0)
        assert_same_bits(resumed)


@pytest.mark.slow
def test_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    run_in_two_processes(resume, tmp_path)
