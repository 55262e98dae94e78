"""A device that refuses float64, as MPS does: everything runs there, as exact as float32 allows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils._pytree import tree_map
from torchmetrics import Metric

from examples.lab.arguments import spec
from lightning_jd import JacobianDescent, JDReport
from lightning_jd.aggregators import available, resolve
from lightning_jd.engines import Objectives, Tape
from lightning_jd.errors import ArgumentError
from lightning_jd.linalg import dual_cone_residuals, min_norm_residuals, upgrad_solution
from tests.accelerators.on_device.test_backward import FORMS, assert_same
from tests.accelerators.on_device.test_fit import fitted
from tests.engines.oracle import assert_gradients, assert_gramian, jacobian_blocks
from tests.engines.zoo import CASES, FEW
from tests.helpers.gramians import FAMILIES
from tests.helpers.lightning import Regression
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
        lambda: torch.tensor([1.0], dtype=torch.float64, device=DEVICE),
        lambda: x.to(torch.complex128),
        lambda: x.new_zeros(2, dtype=torch.float64),
    ):
        with pytest.raises(TypeError, match="has no such numbers"):
            wide()
    assert float((2 * x).sum()) == 4.0
    assert x.cpu().double().dtype == torch.float64


#: A cell of an LSTM is a fused kernel there, which a CPU does not have.
@pytest.mark.parametrize("name", [name for name in FEW if name != "lstm"])
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


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("memory", ["fast", "low"])
def test_an_option_gives_the_steps_of_the_cpu(form: str, memory: str) -> None:
    assert_same(form, torch.float32, memory=memory)


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


def shown(metric: Metric, device: Any) -> Any:
    own = metric.clone().to(device)
    own.reset()
    for seed in range(5):
        told = {name: value.float().to(device) for name, value in step(seed).items()}
        own.update(**own._filter_kwargs(**told))
    states = [each for each in own.metric_state.values() if isinstance(each, Tensor)]
    assert all(each.device == torch.device(device) for each in states)
    return tree_map(lambda x: host(x) if isinstance(x, Tensor) else x, own.compute())


@each_metric
def test_a_metric_is_that_of_the_cpu(metric: Metric) -> None:
    assert_close(shown(metric, DEVICE), shown(metric, "cpu"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["upgrad", "famo", "weightsevery"])
def test_a_logged_fit_gives_the_weights_of_the_cpu(method: str, tmp_path: Path) -> None:
    log = {"every_n_steps": 1, "per_group": True, "stationarity": True}
    found = []
    for arguments in ({}, on_device()):
        descent = JacobianDescent(spec(method, 3), log=log)
        report = JDReport(str(tmp_path), every_n_steps=1)
        found.append(fitted(Regression("tasks"), [descent, report], **arguments))
        assert str(descent.report)
    assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)
    assert list(tmp_path.glob("*.html"))
