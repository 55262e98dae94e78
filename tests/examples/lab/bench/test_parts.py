"""What the benchmarks are made of: work, engines, counters and verdicts; nothing is timed."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from examples.lab.bench import exactness
from examples.lab.bench._kernels import KernelCounter, kernels_of
from examples.lab.bench._layers import layers_of
from examples.lab.bench._traffic import traffic_table
from examples.lab.bench._volume import Head, Matrix
from examples.lab.bench.exactness import MODELS, compared
from examples.lab.gallery import Specimen
from examples.lab.gallery._case import always, three_targets
from examples.lab.gallery.steps import error_of
from examples.lab.work.networks import mlp, mlp_tasks
from examples.lab.work.steps import ENGINES, make_step

WORK = {"instances": lambda: mlp(4, 8, inputs=6), "tasks": lambda: mlp_tasks(2, 4, 8)}


def regression(m: int) -> Specimen:
    """A model of the gallery that takes no time."""
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    batch = {"x": torch.randn(m, 4), "y": torch.randn(m, 3)}
    return Specimen(model, always(batch), lambda net, b: three_targets(net(b["x"]), b["y"]))


@pytest.mark.parametrize("aggregator", ["mean", "upgrad"])
@pytest.mark.parametrize("name", WORK)
def test_every_engine_computes_the_same_update(name: str, aggregator: str) -> None:
    pytest.importorskip("torchjd")
    updates = {}
    for engine in ENGINES:
        torch.manual_seed(0)
        work = WORK[name]()
        step = make_step(engine, work, aggregator)
        step()
        shared = work.model.trunk if work.has_tasks else work.model
        updates[engine] = torch.cat([p.grad.flatten() for p in shared.parameters()])
    plain = updates.pop("plain")
    reference = plain if aggregator == "mean" else updates["autojac"]
    for engine, update in updates.items():
        # TorchJD normalises and regularises a little differently.
        torch.testing.assert_close(update, reference, rtol=1e-2, atol=1e-4, msg=engine)


@pytest.mark.filterwarnings("ignore")  # vmap of an LSTM is slow, and warns
@pytest.mark.parametrize("name", MODELS)
def test_our_norms_and_those_of_torch_are_right(name: str) -> None:
    row = compared(name, MODELS[name])
    assert str(row["lightning_jd"]).startswith("right")
    assert str(row["torch"]).startswith("right")


def test_what_is_wrong_and_what_is_refused_is_called_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def half(model: nn.Module, words: Tensor) -> Tensor:
        return exactness.by_us(model, words) / 2

    def refusing(model: nn.Module, words: Tensor) -> Tensor:
        raise NotImplementedError

    wrong = {"torch": ("", half), "torchmetrics": ("", refusing), "nobody": ("", half)}
    monkeypatch.setattr(exactness, "ENGINES", {**exactness.ENGINES, **wrong})
    row = compared("LSTM", MODELS["LSTM"])
    assert row["torch"] == "**wrong by 50 %**"
    assert row["torchmetrics"] == "refused (NotImplementedError)"
    assert row["nobody"] == "-"


def test_the_error_of_a_model_finds_a_wrong_gradient() -> None:
    specimen = regression(4).double()
    assert error_of(specimen, "instances") < 1e-12
    specimen.model.zero_grad()

    def spoil(p: Tensor) -> None:
        p.grad.mul_(1.01)

    specimen.model[0].weight.register_post_accumulate_grad_hook(spoil)
    assert error_of(specimen, "instances") > 1e-4


def test_layers_are_sizes() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 5, bias=False))
    x = torch.zeros(6, 1, 4, 4)
    assert layers_of(model, x, "instances") == [Matrix(4, 9, 2), 2, Matrix(1, 8, 5)]
    assert layers_of(model, x, "tasks") == [18, 2, Matrix(6, 8, 5)]
    work = WORK["tasks"]()
    assert layers_of(work.model, work.x, "tasks")[2:] == [Head(80), Head(10)] * 2


def test_the_traffic_in_the_docs_is_what_the_function_says() -> None:
    page = (Path(__file__).parents[4] / "docs/distributed.md").read_text()
    shown = page.partition("<!-- traffic -->\n")[2].partition("\n<!-- end of traffic -->")[0]
    assert shown == traffic_table(), "print(traffic_table()) and paste it into docs/distributed.md"


def test_views_are_no_kernels_and_the_backward_pass_counts() -> None:
    x, layer = torch.ones(4, 3), nn.Linear(3, 2)
    with KernelCounter() as counter:
        layer(x).view(8).sum().backward()
    forward = {"addmm": 1, "sum": 1}
    backward = {"ones_like": 1, "mm": 1, "sum": 1}  # the seed, the weight, the bias
    assert counter.counts == Counter(forward) + Counter(backward)
    assert kernels_of(lambda: torch.ones(2, 2).t()[0].view(2)) == 1
