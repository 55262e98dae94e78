"""torch.compile of the whole module, and of functions that were compiled before."""

import shutil

import pytest
import torch

from lightning_jd.errors import GraphError
from lightning_jd.surfaces import JacobianDescent
from tests.helpers.lightning import Regression, assert_same_weights, batches, fit, moved
from tests.integration.features import Compiled

BACKENDS = [
    "aot_eager",
    pytest.param(
        "inductor",
        marks=[
            pytest.mark.slow,
            pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated"),
            pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler"),
        ],
    ),
]


class Plain(Regression):
    """Differentiates the same graph, once."""

    def backward(self, loss: torch.Tensor, *args: object, **kwargs: object) -> None:
        loss.sum().backward()


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", ["instances", "tasks"])
def test_the_whole_module(form: str, backend: str) -> None:
    torch.compiler.reset()
    module, eager = Regression(form), Regression(form)
    fit(torch.compile(module, backend=backend), batches(n=8), callbacks=[JacobianDescent("mgda")])
    fit(eager, batches(n=8), callbacks=[JacobianDescent("mgda")])
    assert moved(module, Regression())
    assert_same_weights(module, eager, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_after_plain_training_with_a_reset(backend: str) -> None:
    torch.compiler.reset()
    fit(torch.compile(Plain("instances"), backend=backend), batches(n=8))
    torch.compiler.reset()  # what is cached on disk must not come back either
    ours, eager = Regression("instances"), Regression("instances")
    fit(torch.compile(ours, backend=backend), batches(n=8), callbacks=[JacobianDescent("mgda")])
    fit(eager, batches(n=8), callbacks=[JacobianDescent("mgda")])
    assert_same_weights(ours, eager, rtol=1e-4, atol=1e-5)


def test_a_function_that_was_compiled_for_plain_training() -> None:
    plain, ours = Compiled("scalar"), Regression("instances")
    fit(plain, batches(n=8))
    ours.net = plain.run[0]  # compiled, and used, before there was Jacobian descent
    with pytest.raises(GraphError, match=r"Call `torch\.compiler\.reset\(\)` before `fit`"):
        fit(ours, batches(n=8), callbacks=[JacobianDescent("mgda")])
