"""Parameters in pieces on two processes (FSDP2) give what whole parameters (DDP) give."""

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.strategies import ModelParallelStrategy as FabricModelParallelStrategy
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.testing import assert_close

from lightning_jd import fabric as jd
from lightning_jd.errors import (
    AggregatorError,
    ArgumentError,
    NonFiniteError,
    PeerError,
    SetupError,
)
from lightning_jd.surfaces import JacobianDescent
from tests.helpers.halves import shared_batches
from tests.helpers.lightning import ManualRegression, Regression, fit, moved, network, weights
from tests.helpers.two_processes import run_in_two_processes
from tests.surfaces.features import Hooked
from tests.surfaces.matrix import MISSING, PRECISIONS, STRATEGIES

FSDP = next(name for name in STRATEGIES if "FSDP2" in name)
EXACT = {"rtol": 0.0, "atol": 1e-10}  # in float64


class Sharded(Regression):
    """Every layer is cut, and the whole module last."""

    def configure_model(self) -> None:
        if isinstance(self.trainer.strategy, ModelParallelStrategy):
            shard(self, self.device_mesh["data_parallel"])


class ShardedHooked(Sharded, Hooked):
    pass


class Changed(Sharded):
    """The second process makes something else of its errors."""

    def __init__(self, form: Any, change: Callable[[Tensor, Callable[..., Any]], Any]) -> None:
        super().__init__(form)
        self.change = change

    def in_form(self, errors: Tensor) -> Any:
        form = super().in_form
        return self.change(errors, form) if dist.get_rank() else form(errors)


class Summed(Sharded):
    """Returns the sum of its losses."""

    def in_form(self, errors: Tensor) -> Any:
        return sum(super().in_form(errors)["loss"].values())


class ShardedManually(Sharded, ManualRegression):
    pass


class Compiled(Sharded):
    """Every layer is compiled; with DDP it is as it was."""

    def configure_model(self) -> None:
        if isinstance(self.trainer.strategy, ModelParallelStrategy):
            torch.compiler.reset()
            for layer in self.net:
                layer.compile(backend="aot_eager")
        super().configure_model()


def shard(module: nn.Module, mesh: Any) -> None:
    for layer in [each for each in module.modules() if isinstance(each, nn.Linear)]:
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)


def data(dtype: torch.dtype = torch.float64) -> Any:
    loader = shared_batches()
    loader.dataset.tensors = tuple(tensor.to(dtype) for tensor in loader.dataset.tensors)
    return loader


def in_pieces() -> dict[str, Any]:
    return {"strategy": ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)}


def whole(module: nn.Module) -> dict[str, Tensor]:
    """The weights, put together."""
    return {
        name: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        for name, tensor in weights(module).items()
    }


def train(strategy: dict[str, Any], make: Callable[[], Regression], **arguments: Any) -> Regression:
    settings = arguments.pop("settings", {"aggregator": "upgrad"})
    module = make().to(arguments.pop("dtype", torch.float64))
    loader = data(next(module.parameters()).dtype)
    callbacks = [JacobianDescent(**settings), *arguments.pop("callbacks", [])]
    fit(
        module,
        loader,
        **{"callbacks": callbacks, "devices": 2, "max_epochs": 1, **strategy, **arguments},
    )
    return module


#: Name to the arguments of a run, and how close its weights are to those of DDP.
RUNS: dict[str, tuple[dict[str, Any], dict[str, float]]] = {}


def add_run(
    name: str,
    form: Any,
    aggregator: str = "upgrad",
    cls: Any = Sharded,
    pieces: int = 1,
    **settings: Any,
) -> None:
    arguments = {"make": lambda: cls(form), "accumulate_grad_batches": pieces}
    RUNS[name] = ({**arguments, "settings": {"aggregator": aggregator, **settings}}, EXACT)


for form in ("instances", "matrix", "tasks"):
    add_run(form, form)
add_run("uneven", "instances", cls=partial(Changed, change=lambda errors, form: form(errors[:-1])))
add_run("ranks", "scalar", rows="ranks")
add_run("a scalar, by terms", "tasks", cls=Summed, split="terms")
add_run("a scalar, by instances", "scalar", split="instances")
add_run("hooks", "instances", cls=ShardedHooked)
add_run("hooks, tasks", "tasks", cls=ShardedHooked)
add_run("manually", "list", cls=ShardedManually)
add_run("momentum", "tasks", cls=partial(Sharded, optimizer=torch.optim.AdamW))
RUNS["momentum"][0]["gradient_clip_val"] = 0.1
add_run("layers", "instances", "mgda", groups="layer")
add_run("pattern", "matrix", "pcgrad", params="net.0.*")
add_run("state", "tasks", "gradvac", groups="layer")
add_run("state and losses", "tasks", "gradnorm")
add_run("losses only", "tasks", "uw", pieces=2, accumulation="step")
add_run("two samples", "matrix", "modo")
clip: Any = {"name": "clip", "norm": 0.5}
add_run("norms", "instances", clip)
add_run("norms of tasks", "tasks", clip)
add_run("norms, layers", "instances", clip, groups="layer")
add_run("norms, whole steps", "instances", clip, pieces=2, accumulation="step")
add_run("micro-batches", "tasks", pieces=2)
add_run("tasks, whole steps", "tasks", pieces=2, accumulation="step")
add_run("instances, whole steps", "instances", "mgda", pieces=2, accumulation="step")
for precision, (trainer_arguments, tolerance) in PRECISIONS.items():
    for kind, cls in {"eager": Sharded, "compiled": Compiled}.items():
        if precision not in MISSING[FSDP]:
            add_run(name := f"{precision}, {kind}", "instances", cls=cls)
            arguments = {**RUNS[name][0], "dtype": torch.float32, **trainer_arguments()}
            RUNS[name] = (arguments, tolerance)


def equal_to_ddp(rank: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    for name, (arguments, tolerance) in RUNS.items():
        pieces = train(in_pieces(), **arguments)
        entire = train({"strategy": "ddp"}, **arguments)
        assert moved(entire, arguments["make"]().to(next(entire.parameters()).dtype))
        assert_close(whole(pieces), whole(entire), **tolerance, msg=lambda m, n=name: f"{n}: {m}")
        assert all(hasattr(tensor, "placements") for tensor in pieces.parameters())


@pytest.mark.slow
def test_pieces_equal_ddp(tmp_path: Path) -> None:
    run_in_two_processes(equal_to_ddp, tmp_path)


def examples_of_ddp(rank: int, folder: Path) -> None:
    """Of the micro-batches of a step, each row belongs to the same example as with DDP."""
    warnings.simplefilter("ignore")
    tables = []
    for strategy in (in_pieces(), {"strategy": "ddp"}):
        callback = JacobianDescent("upgrad", accumulation="step", examples=True)
        module = Sharded("instances").double()
        fit(module, data(), callbacks=[callback], devices=2, max_epochs=1,
            accumulate_grad_batches=2, **strategy)  # fmt: skip
        tables.append({name: torch.tensor(column) for name, column in callback.examples.items()})
    assert_close(*tables, rtol=1e-9, atol=1e-9)
    assert len(tables[0]["norm"].unique()) == 16


@pytest.mark.slow
def test_examples_are_those_of_ddp(tmp_path: Path) -> None:
    run_in_two_processes(examples_of_ddp, tmp_path)


def resume(rank: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    random = {"aggregator": "rgw"}  # whose draws have to go on, too
    make = lambda: Sharded("tasks", lr=0.05, momentum=0.9)  # noqa: E731
    uninterrupted = train(in_pieces(), make, settings=random, max_epochs=2)
    saving = ModelCheckpoint(folder / "saved", filename="first")
    train(in_pieces(), make, settings=random, callbacks=[saving], enable_checkpointing=True)
    resumed = train(
        in_pieces(), make, settings=random, max_epochs=2, ckpt_path=folder / "saved" / "first.ckpt"
    )
    assert_close(whole(resumed), whole(uninterrupted), rtol=0, atol=0)


@pytest.mark.slow
def test_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    run_in_two_processes(resume, tmp_path)


class PartlyWhole(Sharded):
    def configure_model(self) -> None:
        fully_shard(self.net[0], mesh=self.device_mesh["data_parallel"])


def with_b(change: Callable[[Tensor], Any]) -> Any:
    """The second process has something else in the place of its second loss."""

    def changed(errors: Tensor, form: Any) -> Any:
        losses = form(errors)["loss"]
        return {"loss": {**losses, "b": change(losses["b"])}}

    return lambda: Changed("tasks", changed)


def failing(errors: Tensor, form: Any) -> Any:
    """After the forward pass, in which the first process needs the second."""
    raise KeyError("a label that nobody has seen before")


def refuse(rank: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    for make, error, message in (
        (
            lambda: PartlyWhole("tasks"),
            *(SetupError, r"cut into one piece .* got 'net\.2\.weight', which is not in"),
        ),
        (
            lambda: Changed("instances", lambda errors, form: torch.zeros(0, requires_grad=True)),
            *(ArgumentError, r"must have losses, .* got \[2, 0\]"),
        ),
        (
            with_b(lambda b: None),
            *(ArgumentError, r"same tasks, got \[\['a', 'b', 'c'\], \['a', 'c'\]\]"),
        ),
        (  # and no word of nonfinite='skip', which is refused here
            with_b(lambda b: b * torch.nan),
            *(NonFiniteError, r"in 1 of 6 on 2 processes: 'b'\. [^=]*or lower the learning r"),
        ),
        (
            lambda: Changed("tasks", lambda errors, form: errors.mean()),
            *(ArgumentError, "or all must have one scalar"),
        ),
        (
            lambda: Changed("tasks", failing),
            *(KeyError if rank else PeerError, "a label that nobody has seen before"),
        ),
    ):
        with pytest.raises(error, match=message):
            train(in_pieces(), make)
    with pytest.raises(SetupError, match="must be a weighting of the rows, got graddrop"):
        train(in_pieces(), lambda: Sharded("tasks"), settings={"aggregator": "graddrop"})
    with pytest.raises(AggregatorError, match=r"The aggregator careless .* NaN or infinity in 3"):
        train(in_pieces(), lambda: Sharded("tasks"), settings={"aggregator": careless})


def careless(gramian: Tensor) -> Tensor:
    return gramian.diagonal() * torch.nan


@pytest.mark.slow
def test_what_cannot_work_is_refused(tmp_path: Path) -> None:
    run_in_two_processes(refuse, tmp_path)


def with_fabric(strategy: Any, form: Any) -> dict[str, Tensor]:
    fabric = Fabric(accelerator="cpu", devices=2, strategy=strategy)
    fabric.launch()
    recipe, net = Regression(form), network()
    model = fabric.setup_module(net)
    optimizer = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.05))
    for x, y in data(torch.float32):
        output = recipe.in_form((model(x) - y).square())
        optimizer.zero_grad()
        losses = output["loss"] if isinstance(output, dict) else output
        jd.backward(fabric, losses, model, "upgrad")
        optimizer.step()
    return whole(net)


def parallelize(module: nn.Module, mesh: Any) -> nn.Module:
    shard(module, mesh["data_parallel"])
    return module


def fabric_equal_to_ddp(rank: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    for form in ("tasks", "instances"):
        pieces = FabricModelParallelStrategy(parallelize, 2, 1)
        assert_close(with_fabric(pieces, form), with_fabric("ddp", form), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_fabric(tmp_path: Path) -> None:
    run_in_two_processes(fabric_equal_to_ddp, tmp_path)
