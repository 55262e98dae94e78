"""200 random graphs that change between steps, and that the comparison finds what is wrong."""

from contextlib import redirect_stdout
from io import StringIO

import pytest
import torch

from tests.engines.fuzz import compare as comparison
from tests.engines.fuzz.compare import MODES, TOLERANCE, compare
from tests.engines.fuzz.generate import Graph, Operation, draw_graph
from tests.engines.fuzz.operations import LOSSES, OPERATIONS
from tests.engines.fuzz.shrink import script, shrink
from tests.engines.zoo import default_dtype

QUICK, ALL = 3, 25  # of each precision
LAYER = Graph("float64", (3, 4), (Operation("linear", 0, False),), Operation("instances", 0, False))


@pytest.fixture(autouse=True)
def _tasks_go_by_the_tape() -> None:
    """Small tasks go their own way here: what users get is compared."""


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    "seed",
    [pytest.param(s, marks=[pytest.mark.slow] if s >= QUICK else []) for s in range(ALL)],
)
def test_what_is_delivered_is_what_autograd_delivers(seed: int, dtype: str) -> None:
    graph = draw_graph(seed, dtype)
    outcome = compare(graph)
    if outcome.wrong:
        pytest.fail(script(*shrink(graph, outcome.wrong[0])))
    assert not (graph.is_linear and outcome.false_alarms)
    assert not outcome.refused


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_an_error_of_a_tenth_in_one_parameter_is_found(dtype, monkeypatch) -> None:
    exact = comparison.backward
    graph = Graph(dtype, LAYER.shape, (*LAYER.operations, *LAYER.operations), LAYER.loss)

    def wrong(losses, params, *args, **options):
        report = exact(losses, params, *args, **options)
        params[-1].grad *= 1.1
        return report

    assert not compare(graph).wrong
    monkeypatch.setattr(comparison, "backward", wrong)
    found = {w.mode for w in compare(graph).wrong}
    assert found == {"fast", "low", "twice", "upgrad"}


def test_a_failure_becomes_a_small_script_that_runs_alone(monkeypatch) -> None:
    graph = next(g for s in range(99) if "x.tanh()" in (g := draw_graph(s, "float64")).source)
    fails = lambda checked, *_: "off" if "tanh" in checked.graph.source else ""  # noqa: E731
    monkeypatch.setitem(MODES, "fast", fails)
    found = compare(graph, ("fast",)).wrong[0]
    small, wrong = shrink(graph, found)
    assert len(small.operations) <= 2
    assert len(small.operations) < len(graph.operations)
    said = StringIO()
    with redirect_stdout(said), default_dtype(torch.float64):
        exec(script(small, wrong), {})
    assert said.getvalue().startswith("step 0: relative errors: Gramian")


@pytest.mark.slow
def test_every_operation_is_drawn_and_fits() -> None:
    rest, seed = {*OPERATIONS, *LOSSES}, 0
    while rest:
        assert seed < 800, rest
        rest -= draw_graph(seed, "float64").written
        seed += 1
