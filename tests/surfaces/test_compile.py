"""torch.compile of the whole module, and of functions that were compiled before."""

import shutil
import unittest.mock
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_jd.surfaces import JacobianDescent
from tests.helpers.lightning import Regression, assert_same_weights, batches, fit, moved

SAID = "Jacobian descent runs compiled modules eagerly"
needs_a_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


class Plain(Regression):
    """Differentiates the same graph, once."""

    def backward(self, loss: torch.Tensor, *args: object, **kwargs: object) -> None:
        loss.sum().backward()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")
@pytest.mark.parametrize(
    ("form", "backend"),
    [
        ("instances", "aot_eager"),
        ("tasks", "aot_eager"),
        pytest.param("tasks", "inductor", marks=needs_a_compiler),
    ],
)
def test_the_whole_module(form: str, backend: str) -> None:
    torch.compiler.reset()
    module, eager = Regression(form), Regression(form)
    fit(torch.compile(module, backend=backend), batches(n=8), callbacks=[JacobianDescent("mgda")])
    fit(eager, batches(n=8), callbacks=[JacobianDescent("mgda")])
    assert moved(module, Regression())
    assert_same_weights(module, eager, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_after_plain_training_with_a_reset() -> None:
    torch.compiler.reset()
    fit(torch.compile(Plain("instances"), backend="aot_eager"), batches(n=8))
    torch.compiler.reset()  # what is cached on disk must not come back either
    ours, eager = Regression("instances"), Regression("instances")
    fit(torch.compile(ours, backend="aot_eager"), batches(n=8), callbacks=[JacobianDescent("mgda")])
    fit(eager, batches(n=8), callbacks=[JacobianDescent("mgda")])
    assert_same_weights(ours, eager, rtol=1e-4, atol=1e-5)


class Around(nn.Module):
    """`compile` in place skips frames of torch itself, such as those of `nn.Sequential`."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Watching(Regression):
    """Notes for every step whether the graph of its losses has a compiled function."""

    def __init__(self, form: Any, spelling: str) -> None:
        super().__init__(form)
        self.compiled_steps: list[bool] = []
        torch.compiler.reset()
        net = self.net
        if spelling == "part":
            self.call = torch.compile(net, backend="aot_eager")
        elif spelling == "in place":
            self.call = Around(net)
            self.call.compile(backend="aot_eager")
        else:
            self.call = torch.compile(lambda x: net(x), backend="aot_eager")

    def errors(self, batch: list[Tensor]) -> Tensor:
        x, y = batch
        return (self.call(x) - y).square()

    def in_form(self, errors: Tensor) -> Any:
        if not torch.compiler.is_compiling():
            nodes = [errors.grad_fn]
            for node in nodes:
                nodes += [below for below, _ in node.next_functions if below is not None]
            names = [node.name() for node in nodes]
            self.compiled_steps.append("CompiledFunctionBackward" in names)
        return super().in_form(errors)


@pytest.mark.parametrize("spelling", ["part", "in place", "function"])
@pytest.mark.parametrize(("form", "compiled"), [("instances", False), ("tasks", True)])
def test_instances_run_eagerly_and_tasks_stay_compiled(
    form: str, compiled: bool, spelling: str
) -> None:
    module, eager = Watching(form, spelling), Regression(form)
    said: list[str] = []
    callback = JacobianDescent("mgda")
    with unittest.mock.patch.object(type(callback), "_inform", staticmethod(said.append)):
        fit(module, batches(n=12), callbacks=[callback], max_epochs=1)
    # A function that is no part of the module is found in the graph of the first step.
    first = spelling == "function"
    assert module.compiled_steps == [first, compiled, compiled]
    assert sum(text.startswith(SAID) for text in said) == (not compiled)
    fit(eager, batches(n=12), callbacks=[JacobianDescent("mgda")], max_epochs=1)
    assert_same_weights(module.net, eager.net, rtol=1e-4, atol=1e-5)


def test_the_whole_module_runs_eagerly_and_is_not_even_compiled() -> None:
    torch.compiler.reset()

    def refuse(graph: Any, inputs: Any) -> Any:
        raise AssertionError("nothing must be compiled for instances")

    module = torch.compile(Regression("instances"), backend=refuse)
    fit(module, batches(n=8), callbacks=[JacobianDescent("mgda")])
