"""rows="ranks": the scalar loss of each process is one objective."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from torch import Tensor
from torch.testing import assert_close
from torch.utils.data import DataLoader, DistributedSampler

from lightning_jd import fabric as jd
from lightning_jd.surfaces import JacobianDescent, JDDDPStrategy, JDModuleMixin
from tests.helpers.lightning import (
    ManualRegression,
    Regression,
    batches,
    fit,
    moved,
    network,
    weights,
)
from tests.helpers.two_processes import run_in_two_processes

CLOSE = {"rtol": 0.0, "atol": 1e-10}
EPOCHS = 3  # of 4 batches of 4, of which the first process gets the even samples


class Shares(Regression):
    """The loss of the share of each process; one process has both, as two tasks."""

    def in_form(self, errors: Tensor) -> Any:
        if dist.is_initialized():
            return errors.mean()
        return {"loss": {"0": errors[::2].mean(), "1": errors[1::2].mean()}}


class ManualShares(Shares, ManualRegression):
    pass


class FlaggedShares(JDModuleMixin, Shares):
    jacobian_descent: Any = None


def data() -> DataLoader[tuple[Tensor, ...]]:
    whole = batches(n=16)
    if not dist.is_initialized():
        return whole
    own = DistributedSampler(whole.dataset, shuffle=False)  # Lightning would shuffle
    return DataLoader(whole.dataset, batch_size=2, sampler=own)


def train(
    cls: type[Regression], surface: str, accumulate: int, **options: Any
) -> dict[str, Tensor]:
    two = dist.is_initialized()
    options |= {"rows": "ranks"} if two else {}
    module = cls("scalar")
    arguments: dict[str, Any] = {"strategy": "ddp", "devices": 2} if two else {}
    if surface == "flag":
        module.jacobian_descent = options
    elif surface == "strategy" and two:
        arguments["strategy"] = JDDDPStrategy(**options)
    else:
        arguments["callbacks"] = [JacobianDescent(**options)]
    fit(
        module,
        data(),
        max_epochs=EPOCHS,
        precision="64-true",
        accumulate_grad_batches=accumulate,
        **arguments,
    )
    return weights(module)


def train_with_fabric() -> dict[str, Tensor]:
    two = dist.is_initialized()
    arguments = {"devices": 2, "strategy": "ddp"} if two else {"devices": 1}
    fabric = Fabric(accelerator="cpu", precision="64-true", **arguments)
    fabric.launch()
    net, recipe = network(), Shares("scalar")
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.05))
    for batch in data():
        x, y = (tensor.double() for tensor in batch)
        output = recipe.in_form((model(x) - y).square())
        optimizer.zero_grad()
        losses = output if two else output["loss"]
        jd.backward(fabric, losses, model, "upgrad", rows="ranks" if two else None)
        optimizer.step()
    return weights(net)


def runs() -> dict[str, Callable[[], dict[str, Tensor]]]:
    cases: dict[str, Callable[[], dict[str, Tensor]]] = {"fabric": train_with_fabric}
    for aggregator in ("upgrad", "mgda", "pcgrad", "graddrop"):
        for surface in ("callback", "strategy"):
            for accumulation in ("batch", "step"):
                cases[f"{aggregator}, {surface}, {accumulation}"] = (
                    lambda aggregator=aggregator, surface=surface, accumulation=accumulation: train(
                        Shares, surface, 2, aggregator=aggregator, accumulation=accumulation
                    )
                )
    cases["flag"] = lambda: train(FlaggedShares, "flag", 1, aggregator="upgrad")
    cases["manual"] = lambda: train(ManualShares, "callback", 1, aggregator="upgrad")
    cases["layers"] = lambda: train(Shares, "callback", 1, aggregator="upgrad", groups="layer")
    return cases


def work(rank: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    expected = torch.load(folder / "expected.pt")
    for name, run in runs().items():
        actual = run()
        both: list[Any] = [None, None]
        dist.all_gather_object(both, actual)
        assert_close(both[0], both[1], rtol=0, atol=0, msg=lambda m, n=name: f"{n}: {m}")
        # Fabric hands out what a model returns in float32
        close = {**CLOSE, "atol": 1e-6} if name == "fabric" else CLOSE
        assert_close(actual, expected[name], **close, msg=lambda m, n=name: f"{n}: {m}")
    mean, plain = Shares("scalar"), Shares("scalar")
    ddp = {"strategy": "ddp", "devices": 2, "max_epochs": 1, "precision": "64-true"}
    callback = JacobianDescent("mean", rows="ranks")
    fit(mean, data(), callbacks=[callback], **ddp)
    fit(plain, data(), **ddp)
    assert_close(weights(mean), weights(plain), **CLOSE)
    assert callback.report.names == ("0", "1")


@pytest.mark.slow
def test_two_processes_equal_two_tasks_of_one(tmp_path: Path) -> None:
    torch.save({name: run() for name, run in runs().items()}, tmp_path / "expected.pt")
    run_in_two_processes(work, tmp_path)


@pytest.mark.parametrize(
    ("cls", "accumulation"),
    [(Regression, "batch"), (Regression, "step"), (ManualRegression, "batch")],
)
def test_one_process_trains_as_always(cls: type[Regression], accumulation: Any) -> None:
    module, plain = cls("scalar"), cls("scalar")
    callback = JacobianDescent("upgrad", rows="ranks", accumulation=accumulation)
    several = {} if cls is ManualRegression else {"accumulate_grad_batches": 2}
    fit(module, callbacks=[callback], precision="64-true", **several)
    fit(plain, precision="64-true", **several)
    assert_close(weights(module), weights(plain), **CLOSE)
    assert moved(module.net, network())
    assert callback.report.names == ("0",)
