"""A device that refuses float64, as MPS does: everything runs there, as exact as float32 allows."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.accelerators.on_device.test_backward import FORMS, METHODS, Net
from tests.accelerators.on_device.test_fit import SUPPORTED, assert_same, fitted
from torch import Tensor
from torch.testing import assert_close
from torch.utils._pytree import tree_map
from torchmetrics import Metric

import lightning_jd
from lightning_jd import JacobianDescent, JDReport, optim
from lightning_jd.aggregators import available, resolve
from lightning_jd.engines import Objectives, Tape
from lightning_jd.errors import ArgumentError, NonFiniteError
from lightning_jd.linalg import dual_cone_residuals, min_norm_residuals, upgrad_solution
from lightning_jd.metrics import DeltaM, Hypervolume, MeanRank, delta_m, hypervolume, mean_rank
from tests.engines.oracle import assert_gradients, assert_gramian, jacobian_blocks
from tests.engines.zoo import CASES, FEW
from tests.helpers.examples import spec
from tests.helpers.gramians import FAMILIES
from tests.helpers.lightning import Regression
from tests.integration.features import FEATURES
from tests.integration.test_nonfinite import Exploding
from tests.metrics.test_metrics import each_metric, step
from tests.pretended import DEVICE, host, without_float64
from tests.pretended.lightning import on_device


@pytest.fixture(autouse=True)
def narrow() -> Iterator[None]:
    with without_float64():
        yield


def test_the_device_refuses_float64_in_every_way() -> None:
    x = torch.ones(2, device=DEVICE)
    for wide in (
        lambda: x.double(),
        lambda: torch.ones(2, dtype=torch.float64).to(DEVICE),
        lambda: torch.zeros(2, dtype=torch.float64, device=DEVICE),
        lambda: torch.tensor([1.0], dtype=torch.float64, device=DEVICE),
        lambda: x.sum(dtype=torch.float64),
        lambda: torch.linalg.vector_norm(x, dtype=torch.float64),
        lambda: x.to(torch.complex128),
        lambda: x.new_zeros(2, dtype=torch.float64),
        lambda: torch.zeros_like(x, dtype=torch.float64),
    ):
        with pytest.raises(TypeError, match="has no such numbers"):
            wide()
    assert float((2 * x).sum()) == 4.0
    assert x.cpu().double().dtype == torch.float64


@pytest.mark.parametrize("name", FEW)
def test_the_tape_on(name: str) -> None:
    """The Gramian and the gradients of the CPU, in both memory modes."""
    for memory in ("fast", "low"):
        torch.manual_seed(0)
        expected, named = CASES[name]()
        blocks = jacobian_blocks(expected, named)
        torch.manual_seed(0)
        with torch.device(DEVICE):
            losses, placed = CASES[name]()
        tape = Tape(Objectives.of(losses), placed, memory=memory)
        G = tape.gramian()
        assert G.device == DEVICE
        assert_gramian(host(G), blocks, 1e-4)
        weights = torch.randn(len(G), dtype=G.dtype)
        gradients = tape.gradients(weights.to(DEVICE))
        assert_gradients([_found(g) for g in gradients], weights, blocks, named, 1e-4)


def _found(gradient: Tensor | None) -> Tensor | None:
    if gradient is None:
        return None
    assert gradient.device == DEVICE
    return host(gradient)


def steps(device: Any, form: str, method: Any, **options: Any) -> list[Tensor]:
    torch.manual_seed(0)
    net = Net().to(device)
    x = torch.randn(3, 4, 2, 5, 5).to(device)
    method = copy.deepcopy(method)
    for batch in x:
        net.zero_grad()
        lightning_jd.backward(FORMS[form](net(batch)), net, method, **options)
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.05 * p.grad
    return [host(tensor) for tensor in net.parameters()]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_gives_the_steps_of_the_cpu(name: str) -> None:
    method = resolve(spec(name, 4))
    form = "matrix" if name in ("modo", "sdmgrad") else "tasks"
    expected, found = (steps(d, form, method) for d in ("cpu", DEVICE))
    assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("groups", [None, "layer"])
def test_an_option_gives_the_steps_of_the_cpu(form: str, groups: str | None) -> None:
    for memory in ("fast", "low"):
        method = resolve("upgrad")
        options: dict[str, Any] = {"memory": memory, "groups": groups}
        expected, found = (steps(d, form, method, **options) for d in ("cpu", DEVICE))
        assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", available("aggregators"))
def test_an_aggregator_of_gradients_alone(name: str) -> None:
    for m in (3, 80):
        torch.manual_seed(0)
        J = torch.randn(m, 7)
        try:
            expected = resolve(spec(name, m))(J)
        except ArgumentError:  # some need loss values, or two samples
            continue
        found = resolve(spec(name, m))(J.to(DEVICE))
        assert found.device == DEVICE
        if name != "graddrop":  # which draws on the device
            assert_close(host(found), expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


@pytest.mark.parametrize("family", FAMILIES)
def test_certificates_are_those_of_the_host(family: str) -> None:
    for m in (3, 70):
        G = FAMILIES[family](m, 0).float()
        there, rows = G.to(DEVICE), torch.eye(m)
        found = upgrad_solution(there)
        assert found.weights.device == DEVICE
        assert_close(host(found.weights), upgrad_solution(G).weights, rtol=1e-6, atol=1e-6)
        assert_close(
            dual_cone_residuals(there, rows.to(DEVICE), rows.to(DEVICE), reg=1e-4),
            dual_cone_residuals(G, rows, rows, reg=1e-4),
        )
        w = resolve("mgda").weights(G)
        assert_close(min_norm_residuals(there, w.to(DEVICE)), min_norm_residuals(G, w))


@pytest.mark.parametrize("solver", ["batched", "quadprog"])
def test_a_named_solver(solver: str) -> None:
    G = FAMILIES["gaussian"](5, 0).float()
    found = upgrad_solution(G.to(DEVICE), torch.ones(5).to(DEVICE), solver=solver)
    assert_close(host(found.weights), upgrad_solution(G, torch.ones(5), solver=solver).weights)


def shown(metric: Metric, device: Any) -> Any:
    own = metric.clone().to(device)
    own.reset()
    for seed in range(5):
        told = {name: value.float().to(device) for name, value in step(seed).items()}
        own.update(**own._filter_kwargs(**told))
    return tree_map(lambda x: host(x) if isinstance(x, Tensor) else x, own.compute())


@each_metric
def test_a_metric_is_that_of_the_cpu(metric: Metric) -> None:
    assert_close(shown(metric, DEVICE), shown(metric, "cpu"), rtol=1e-4, atol=1e-5)


def test_metrics_of_tasks_are_those_of_the_cpu() -> None:
    torch.manual_seed(0)
    values, better = torch.rand(3, 2), [True, False]
    there, base = values.to(DEVICE), [0.5, 0.5]
    for function, other in (
        (lambda x, y: delta_m(x, y, better), base),
        (lambda x, _: mean_rank(x, better), None),
        (lambda x, y: hypervolume(x, y, better), [0.0, 1.0]),
    ):
        expected = function(values, other).float()
        assert_close(host(function(there, other)), expected)
        if other is not None:
            assert_close(host(function(there, torch.tensor(other).to(DEVICE))), expected)
    for metric in (DeltaM(base, better), MeanRank(3, better), Hypervolume([0.0, 1.0], better)):
        moved = metric.clone().to(DEVICE)
        for each, told in ((metric, values), (moved, there)):
            each.update(told)
            each.update(told / 2)
        assert_close(host(moved.compute()), metric.compute().float())
        assert moved.to("cpu").compute().device.type == "cpu"
        assert (
            metric.float().compute().dtype == torch.float64
        )  # which is what torchmetrics promises


@pytest.mark.parametrize("name", optim.__all__)
def test_an_optimizer_steps_as_on_the_cpu(name: str) -> None:
    arguments = {"momentum": 0.9} if name == "SGD" else {}
    finals = []
    for device in (DEVICE, torch.device("cpu")):
        params = [torch.ones(4, 3).to(device).requires_grad_() for _ in range(2)]
        optimizer = getattr(optim, name)(params, lr=0.1, **arguments)
        for t in range(4):
            generator = torch.Generator().manual_seed(t)
            for p in params:
                p.grad = torch.randn(4, 3, generator=generator).to(device)
            optimizer.step()
        finals.append([host(p.detach()) for p in params])
    assert_close(*finals, rtol=1e-5, atol=1e-6)


#: One is float64; and the scaler of torch knows a device without float64 by the name of MPS.
LEFT_OUT = ("float64", "16-mixed", "16-mixed with overflow", "16-mixed, clipped and accumulated")
FITS = [name for name in SUPPORTED if name not in LEFT_OUT and "optimization, 16" not in name]


@pytest.mark.parametrize("name", FITS)
def test_a_fit_gives_the_weights_of_the_cpu(name: str) -> None:
    feature = FEATURES[name]
    cpu = fitted(feature.module("instances"), JacobianDescent("upgrad"), **feature.trainer())
    module = fitted(
        feature.module("instances"), JacobianDescent("upgrad"), **on_device(**feature.trainer())
    )
    assert_same(module, cpu, **(feature.tolerance or {"rtol": 1e-4, "atol": 1e-5}))


LOGGED = [name for name in METHODS if name not in ("fromfeatures", "modo", "sdmgrad")]


@pytest.mark.parametrize("name", LOGGED)
def test_a_logged_fit_gives_the_weights_of_the_cpu(name: str) -> None:
    log = {"every_n_steps": 1, "per_group": True, "stationarity": True}
    modules = []
    for arguments in ({}, on_device()):
        descent = JacobianDescent(spec(name, 3), log=log)
        modules.append(fitted(Regression("tasks"), descent, **arguments))
        assert str(descent.report)
    if name != "graddrop":
        assert_same(modules[1], modules[0], rtol=1e-3, atol=1e-4)


def test_a_run_is_reported(tmp_path: Path) -> None:
    callbacks = [JDReport(str(tmp_path), every_n_steps=1)]
    fitted(Regression("tasks"), JacobianDescent("upgrad"), **on_device(callbacks=callbacks))
    assert list(tmp_path.glob("*.html"))


@pytest.mark.parametrize("form", ["tasks", "instances"])
def test_what_is_not_finite_is_named(form: Any) -> None:
    with pytest.raises(NonFiniteError, match=r"In batch 2 of epoch 0"):
        fitted(Exploding(form, "gradient"), JacobianDescent("upgrad"), **on_device())
