"""Plain loops: a GradScaler, micro-batches, rows, names of 0.2."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from lightning_jd import Accumulator, backward
from lightning_jd.errors import ArgumentError, NonFiniteError, ShapeError
from tests.helpers.rows import flat_gradient


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def batch(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(16, 6, generator=generator, dtype=dtype)
    return x, torch.randn(16, 3, generator=generator, dtype=dtype)


def losses(model: nn.Module, part: slice = slice(None), form: str = "instances") -> Any:
    x, y = batch()
    errors = (model(x[part]) - y[part]).square()
    named = dict(zip("abc", errors.mean(dim=0), strict=True))
    return {"instances": errors.mean(dim=1), "matrix": errors, "tasks": named}[form]


def scales(aggregator: str | None) -> list[float]:
    """The scales of a loop in fp16 that begins with one that overflows."""
    model = network(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=4)
    found = []
    x, y = batch(torch.float32)
    for _ in range(20):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            each = F.cross_entropy(model(x), y.argmax(dim=1), reduction="none")
            if aggregator is None:
                scaler.scale(each.mean()).backward()
            else:
                backward(each, model, aggregator, scaler=scaler)
        scaler.step(optimizer)
        scaler.update()
        found.append(scaler.get_scale())
    assert all(p.isfinite().all() for p in model.parameters())
    return found


def test_a_scaler_backs_off_as_in_plain_training() -> None:
    plain = scales(None)
    assert plain[-1] < 2.0**24  # it overflows at all
    for aggregator in ("mean", "upgrad"):
        found = scales(aggregator)
        assert found[:4] == plain[:4]
        # Plain training overflows a little sooner: it adds up the batch in half precision.
        assert plain[-1] <= found[-1] <= 4 * plain[-1]


def test_a_scaler_leaves_scaled_gradients() -> None:
    for aggregator in ("upgrad", "graddrop", "gls"):
        expected, model = network(), network()
        torch.manual_seed(0)
        backward(losses(expected, form="tasks"), expected, aggregator)
        torch.manual_seed(0)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        backward(losses(model, form="tasks"), model, aggregator, scaler=scaler)
        assert_close(flat_gradient(model), 64 * flat_gradient(expected))


def test_a_scaler_that_is_disabled_does_nothing() -> None:
    expected, model = network(), network()
    backward(losses(expected), expected)
    backward(losses(model), model, scaler=torch.amp.GradScaler("cpu", enabled=False))
    assert_close(flat_gradient(model), flat_gradient(expected))


def test_losses_that_were_scaled_before_are_explained() -> None:
    model = network(torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    x, y = batch(torch.float32)
    with torch.autocast("cpu", dtype=torch.float16):
        each = F.cross_entropy(model(x), y.argmax(dim=1), reduction="none")
    with pytest.raises(NonFiniteError, match=r"GradScaler.*unscaled.*scaler=scaler"):
        backward(scaler.scale(each), model, "upgrad")
    with pytest.raises(ArgumentError, match=r"`scaler` must be a torch\.amp\.GradScaler, got int"):
        backward(each, model, scaler=3)
    named = {"a": each[0], "b": each[1]}
    with pytest.raises(ArgumentError, match=r"got map.*scaler=scaler"):
        backward(scaler.scale(named), model)


@pytest.mark.parametrize("form", ["instances", "matrix", "tasks"])
@pytest.mark.parametrize(
    ("aggregator", "options"),
    [
        ("upgrad", {}),
        ("mgda", {"groups": "layer"}),
        ("upgrad", {"params": "0.*"}),
        ({"name": "trimmedmean", "trim": 1}, {}),
    ],
)
def test_micro_batches_equal_the_large_batch(form: str, aggregator: Any, options: Any) -> None:
    expected, model = network(), network()
    torch.manual_seed(0)
    backward(losses(expected, form=form), expected, aggregator, **options)
    torch.manual_seed(0)
    step = Accumulator(model, aggregator, **options)
    for _ in range(2):  # the second time from the beginning
        model.zero_grad()
        torch.manual_seed(0)
        for start in range(0, 16, 4):
            step.add(losses(model, slice(start, start + 4), form))
        step.backward()
        assert_close(flat_gradient(model), flat_gradient(expected), rtol=0, atol=1e-12)


def test_an_accumulator_with_a_scaler() -> None:
    expected, model = network(), network()
    backward(losses(expected), expected)
    step = Accumulator(model, scaler=torch.amp.GradScaler("cpu", init_scale=8.0))
    for start in range(0, 16, 8):
        step.add(losses(model, slice(start, start + 8)))
    step.backward()
    assert_close(flat_gradient(model), 8 * flat_gradient(expected), rtol=0, atol=1e-10)


def test_an_accumulator_needs_losses() -> None:
    with pytest.raises(ArgumentError, match=r"must follow at least one add\(losses\)"):
        Accumulator(network()).backward()
    with pytest.raises(ShapeError, match="must hold at least one loss"):
        Accumulator(network()).add(torch.zeros(0))


@pytest.mark.parametrize(("rows", "dim"), [("tasks", 0), ("instances", 1)])
def test_rows_of_a_matrix(rows: Any, dim: int) -> None:
    expected, model = network(), network()
    backward(losses(expected, form="matrix").mean(dim=dim), expected, rows=rows)
    report = backward(losses(model, form="matrix"), model, rows=rows)
    assert len(report.names) == (3 if rows == "tasks" else 16)
    assert_close(flat_gradient(model), flat_gradient(expected))


def test_nonfinite_rows_can_be_left_out() -> None:
    expected, model = network(), network()
    named = losses(expected, form="tasks")
    backward({"a": named["a"], "b": named["b"]}, expected)
    report = backward(
        {**losses(model, form="tasks"), "c": losses(model, form="tasks")["c"] * torch.nan},
        model,
        nonfinite="skip",
    )
    assert report.skipped == ("c",)
    assert_close(flat_gradient(model), flat_gradient(expected))


@pytest.mark.parametrize("option", ["rows", "nonfinite", "memory"])
def test_options_are_checked(option: str) -> None:
    model = network()
    with pytest.raises(ArgumentError, match=f"`{option}` must be .*, got 'none'"):
        backward(losses(model), model, **{option: "none"})


def test_the_names_of_before_warn() -> None:
    expected, model = network(), network()
    backward(losses(expected), expected, params="0.*")
    with pytest.warns(FutureWarning, match=r"`select` .* is called `params` since 0\.3.*0\.4"):
        backward(losses(model), model, "upgrad", select="0.*")
    assert_close(flat_gradient(model), flat_gradient(expected))
    model.zero_grad()
    with (
        pytest.warns(FutureWarning, match=r"`select`"),
        pytest.warns(FutureWarning, match=r"`params` of `backward` is called `model`"),
    ):
        backward(losses(model), params=model, select="0.*")
    assert_close(flat_gradient(model), flat_gradient(expected))
