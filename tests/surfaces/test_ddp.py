"""Two processes on half batches give the weights of one process on whole batches."""

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy as FabricDDPStrategy
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn

from lightning_jd import fabric as jd
from lightning_jd.errors import NonFiniteError, SetupError
from lightning_jd.surfaces import JacobianDescent, JDDDPStrategy
from tests.helpers.halves import Run, assert_halves_equal_the_whole, check, shared_batches
from tests.helpers.lightning import ManualRegression, Regression, batches, fit, network, weights
from tests.helpers.two_processes import run_in_two_processes
from tests.surfaces.features import FEATURES, Clipped, Hooked
from tests.surfaces.matrix import MODULES, PRECISIONS, STRATEGIES

TWO_PROCESSES = [name for name in STRATEGIES if "ddp" in name]
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
EXACT = {"rtol": 0.0, "atol": 1e-10}  # in float64
#: Forms of losses, aggregators and accumulation. Instances come in another order on two processes,
#: which random weights (rgw) would notice.
METHODS: list[tuple[str, Any, str]] = [
    ("tasks", "upgrad", "batch"),
    ("tasks", "graddrop", "step"),
    ("instances", "upgrad", "step"),
    ("instances", "graddrop", "batch"),
    ("matrix", "upgrad", "batch"),
    ("matrix", "mgda", "step"),
    ("tasks", "rgw", "batch"),
    ("tasks", "rgw", "step"),
    ("instances", {"name": "clip", "norm": 0.5}, "batch"),
    ("instances", {"name": "clip", "norm": 0.5}, "step"),
    ("tasks", {"name": "clip", "norm": 0.5}, "batch"),
    ("instances", {"name": "krum", "n_byzantine": 2, "n_selected": 3}, "step"),
    ("instances", {"name": "trimmedmean", "trim": 1}, "batch"),
]


def surface(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """How the strategy of one row of the matrix is asked for, on one or two processes."""
    if dist.is_initialized():
        if "jd" in name:
            return {"strategy": JDDDPStrategy(**options), "devices": 2}
        return {"strategy": "ddp", "devices": 2, "callbacks": [JacobianDescent(**options)]}
    return {"callbacks": [JacobianDescent(**options)]}


def train(
    name: str, options: dict[str, Any], make: Callable[[], Regression], **arguments: Any
) -> dict[str, Tensor]:
    """One epoch on the same samples: the batches of two processes are halves of those of one."""
    module = make()
    fit(module, shared_batches(), max_epochs=1, **arguments, **surface(name, options))
    return weights(module)


def runs() -> dict[str, Run]:
    """Name to a training and how close its weights are; done with one process and with two."""
    cases: dict[str, Run] = {}
    for name in TWO_PROCESSES:
        for precision, (arguments, tolerance) in PRECISIONS.items():
            for kind, cls in MODULES.items():
                cases[f"{name}, {precision}, {kind}"] = (
                    lambda name=name, arguments=arguments, cls=cls: train(
                        name, {"aggregator": "mgda"}, lambda: cls("instances"), **arguments()
                    ),
                    tolerance,
                )
        for form, aggregator, accumulation in METHODS:
            options = {"aggregator": aggregator, "accumulation": accumulation}
            cases[f"{name}, {form}, {aggregator}, {accumulation}"] = (
                lambda name=name, options=options, form=form: train(
                    name, options, lambda: Regression(form), accumulate_grad_batches=2
                ),
                CLOSE,
            )
    clip = FEATURES["clip by norm"].trainer
    cases["clipping"] = (
        lambda: train("ddp", {"aggregator": "upgrad"}, lambda: Regression("tasks"), **clip()),
        CLOSE,
    )
    for cls in (Hooked, Clipped):
        for form in ("instances", "tasks"):
            for method in ("upgrad", "mean"):
                # the mean of clipped gradients of halves is that of plain training, no other one
                if not (cls is Clipped and (form, method) != ("instances", "upgrad")):
                    cases[f"{cls.__name__}, {form}, {method}"] = (
                        lambda cls=cls, form=form, method=method: train(
                            "ddp", {"aggregator": method}, lambda: cls(form)
                        ),
                        CLOSE,
                    )
    for find_unused in (False, True):
        for params in ("all", "net.*") if find_unused else ("all", "shared"):
            for exclusive in (False, True):
                cases[f"heads, {find_unused}, {params}, {exclusive}"] = (
                    lambda find_unused=find_unused, params=params, exclusive=exclusive: train_heads(
                        find_unused, params=params, exclusive=exclusive
                    ),
                    CLOSE,
                )
    return cases | option_runs() | fabric_runs()


#: Arguments of DistributedDataParallel, each of which has its own way to handle gradients.
OPTIONS: dict[str, dict[str, bool]] = {
    "static": {"static_graph": True},
    "static views": {"static_graph": True, "gradient_as_bucket_view": True},
    "unused views": {"find_unused_parameters": True, "gradient_as_bucket_view": True},
}
#: What is refused, see below.
REFUSED = {("shared", "unused"), ("a micro-batch at a time", "static")}


def option_runs() -> dict[str, Run]:
    """Each option with one kind of rows after the other, both accumulations, and manually."""
    ways: dict[str, tuple[type[Regression], str, dict[str, str], int]] = {
        "instances": (Regression, "instances", {}, 1),
        "a micro-batch at a time": (Regression, "tasks", {}, 2),
        "a step at a time": (Regression, "tasks", {"accumulation": "step"}, 2),
        "manually": (ManualRegression, "tasks", {}, 1),
        "as jd_ddp": (Regression, "list", {}, 1),
        "shared": (Regression, "tasks", {"params": "shared"}, 1),
    }
    return {
        f"{option}, {way}": (
            lambda option=option, way=way: train_with(OPTIONS[option], *ways[way]),
            EXACT,
        )
        for option in OPTIONS
        for way in ways
        if (way, option.split()[0]) not in REFUSED
    }


def train_with(
    option: dict[str, bool],
    cls: type[Regression],
    form: Any,
    settings: dict[str, str],
    accumulate: int,
) -> dict[str, Tensor]:
    module = cls(form)
    arguments: dict[str, Any] = {"callbacks": [JacobianDescent("upgrad", **settings)]}
    if dist.is_initialized() and form == "list":  # the other spelling
        arguments = {"strategy": JDDDPStrategy("upgrad", **settings, **option), "devices": 2}
    elif dist.is_initialized():
        arguments |= {"strategy": DDPStrategy(**option), "devices": 2}
    fit(
        module,
        shared_batches(),
        precision="64-true",
        accumulate_grad_batches=accumulate,
        **arguments,
    )
    return weights(module)


def fabric_runs() -> dict[str, Run]:
    options: dict[str, dict[str, bool]] = {"nothing": {}, **OPTIONS}
    return {
        f"fabric, {name}, {form}": (
            lambda option=option, form=form: train_with_fabric(option, form),
            {"rtol": 0.0, "atol": 1e-6},  # Fabric hands out what a model returns in float32
        )
        for name, option in options.items()
        for form in ("instances", "tasks")
    }


def train_with_fabric(
    option: dict[str, bool], form: Any, accumulate: bool = False
) -> dict[str, Tensor]:
    two = dist.is_initialized()
    fabric = Fabric(
        accelerator="cpu",
        devices=2 if two else 1,
        strategy=FabricDDPStrategy(**option) if two else "auto",
        precision="64-true",
    )
    fabric.launch()
    recipe, net = Regression(form), network()
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.05))
    for batch in shared_batches():
        x, y = (tensor.double() for tensor in batch)
        output = recipe.in_form((model(x) - y).square())
        optimizer.zero_grad()
        losses = output["loss"] if isinstance(output, dict) else output
        with fabric.no_backward_sync(model, enabled=accumulate):
            jd.backward(fabric, losses, model, "upgrad")
        optimizer.step()
    return weights(net)


class Heads(Regression):
    """A trunk and two heads; task "a" has losses on all samples, "b" on every second one only.

    Of two processes, the first gets every second sample, so that only it has task "b" at all. With
    ``exclusive``, task "a" is on the other samples: then no process sees that the trunk is shared.
    """

    def __init__(self, exclusive: bool = False) -> None:
        super().__init__("tasks")
        self.exclusive = exclusive
        self.a, self.b = network(1)[0], network(2)[0]
        self.net = nn.Linear(5, 5)
        with torch.no_grad():
            self.net.weight.copy_(torch.eye(5))
            self.net.bias.zero_()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        two = dist.is_initialized()
        features = self.net(batch[0]).tanh()
        rank = dist.get_rank() if two else None
        evens = features if two else features[::2]
        odds = features if two else features[1::2]
        a, b = self.a(odds if self.exclusive else features), self.b(evens)
        losses = {"a": a.square().mean(), "b": (b - 1).square().mean()}
        if rank == 1:
            del losses["b"]
        elif rank == 0 and self.exclusive:
            del losses["a"]
        return {"loss": losses}


def train_heads(find_unused: bool, **options: Any) -> dict[str, Tensor]:
    exclusive = options.pop("exclusive", False)
    module = Heads(exclusive)
    arguments: dict[str, Any] = {}
    if dist.is_initialized():
        arguments = {"strategy": DDPStrategy(find_unused_parameters=find_unused), "devices": 2}
    callbacks = [JacobianDescent("upgrad", **options)]
    fit(module, shared_batches(), max_epochs=1, callbacks=callbacks, **arguments)
    return weights(module)


class SometimesNan(Regression):
    """One process meets a loss that is not a number; the others must not wait for it."""

    def in_form(self, errors: Tensor) -> Any:
        losses = super().in_form(errors)["loss"]
        if dist.get_rank() == 1:
            losses["b"] = losses["b"] * torch.nan
        return {"loss": losses}


class Uneven(Regression):
    """The second process has one instance less."""

    def in_form(self, errors: Tensor) -> Any:
        return super().in_form(errors[: len(errors) - dist.get_rank()])


def of(theme: str) -> dict[str, Run]:
    return {name: run for name, run in runs().items() if name.split(",")[0] == theme}


def work(rank: int, folder: Path, theme: str) -> None:
    warnings.simplefilter("ignore")
    check(of(theme), folder)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The Gramian must agree:RuntimeWarning")
@pytest.mark.parametrize("theme", sorted({name.split(",")[0] for name in runs()}))
def test_two_processes_equal_one(theme: str, tmp_path: Path) -> None:
    assert_halves_equal_the_whole(partial(work, theme=theme), of(theme), tmp_path)


def refuse_and_skip(rank: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    ddp = {"strategy": "ddp", "devices": 2, "max_epochs": 1}
    with pytest.raises(NonFiniteError, match="'b'"):
        fit(SometimesNan("tasks"), batches(8, 2), callbacks=[JacobianDescent()], **ddp)
    skipping = JacobianDescent(nonfinite="skip")
    fit(SometimesNan("tasks"), batches(8, 2), callbacks=[skipping], **ddp)
    assert skipping.skipped == 2  # the same on both: all processes count all
    assert skipping.report.names == ("a", "b", "c")  # the other process has it
    uneven = JacobianDescent()
    fit(Uneven("instances"), batches(8, 2), callbacks=[uneven], **ddp)
    assert len(uneven.report.names) == 3
    hiding = {"strategy": DDPStrategy(find_unused_parameters=True), "devices": 2}
    with pytest.raises(SetupError, match="find_unused_parameters=True"):
        fit(Regression(), callbacks=[JacobianDescent(params="shared")], **hiding)
    with pytest.raises(SetupError, match="cannot be combined with gradient accumulation"):
        train_with_fabric({"static_graph": True}, "tasks", accumulate=True)
    static = {"strategy": DDPStrategy(static_graph=True), "devices": 2}
    with pytest.raises(SetupError, match=r"static_graph=True.* set accumulation='step'"):
        fit(Regression(), callbacks=[JacobianDescent()], accumulate_grad_batches=2, **static)


@pytest.mark.slow
def test_what_is_not_finite_uneven_or_unsupported(tmp_path: Path) -> None:
    run_in_two_processes(refuse_and_skip, tmp_path)
