"""The column "keeps small tasks" of the table of methods, and the wrapper that gives it to all."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.testing import assert_close

from lightning_jd.aggregators import (
    CRMOGM,
    Clip,
    Constant,
    FromFeatures,
    Krum,
    Mean,
    Method,
    Normalized,
    Step,
    TrimmedMean,
    UPGrad,
    WeightsEvery,
    available,
    resolve,
)
from lightning_jd.errors import ArgumentError, UnknownNameError
from tests.helpers.imbalance import conflicting, keeps_small_tasks, worst_cosine
from tests.helpers.matrices import EXAMPLES, MATRICES, jacobians

METHODS = available()
WRAPPERS = [CRMOGM, FromFeatures, WeightsEvery]
#: Where the constructor has no default: none is clipped, weighted negatively, or trimmed.
MADE: dict[type, Callable[[int], Method]] = {
    Clip: lambda m: Clip(norm=1e6),
    Constant: lambda m: Constant([1.0] * m),
    Krum: lambda m: Krum(n_byzantine=0, n_selected=m),
    TrimmedMean: lambda m: TrimmedMean(trim=0),
}


@pytest.mark.parametrize("name", METHODS)
def test_the_column_is_what_is_measured(name: str) -> None:
    cls = METHODS[name]
    if cls.keeps_small_tasks is None:
        assert cls in WRAPPERS
        return
    assert keeps_small_tasks(MADE.get(cls, lambda m: cls())) == cls.keeps_small_tasks


@pytest.mark.parametrize("cls", WRAPPERS)
def test_a_wrapper_is_as_what_it_wraps(cls: type[CRMOGM]) -> None:
    assert keeps_small_tasks(lambda m: cls("upgrad"))
    assert not keeps_small_tasks(lambda m: cls("mean"))


def test_relative_to_the_trace_small_tasks_are_given_up() -> None:
    assert not keeps_small_tasks(lambda m: UPGrad(relative_to="trace"))
    assert keeps_small_tasks(lambda m: UPGrad(reg=0))


@pytest.mark.parametrize("name", ["mean", "sum", "cagrad", "alignedmtl", "upgrad"])
def test_normalized_gives_it_to_others(name: str) -> None:
    assert keeps_small_tasks(lambda m: Normalized(name))


@pytest.mark.parametrize("length", ["mean", "geometric", "shortest"])
@pytest.mark.parametrize("name", ["mean", "upgrad", "mgda", "alignedmtl"])
def test_normalized_is_the_method_on_unit_rows_times_a_length(name: str, length: str) -> None:
    J = MATRICES["uneven_norms"]
    norms = J.norm(dim=1)
    method, step = resolve(name), Step(tuple("abcde"))
    unit = J / norms[:, None]
    expected = method.weigh(unit @ unit.T, step) @ unit
    lengths = {
        "mean": norms.mean(),
        "geometric": norms.log().mean().exp(),
        "shortest": norms.min(),
    }
    found = Normalized(name, length=length).weigh(J @ J.T, step) @ J
    assert_close(found, lengths[length] * expected, rtol=1e-8, atol=0)


@EXAMPLES
@given(J=jacobians())
def test_rows_of_equal_length_are_left_as_they_are(J: Tensor) -> None:
    J = 7 * J / J.norm(dim=1, keepdim=True).clamp(min=1e-300)
    J = J[J.norm(dim=1) > 1]
    if len(J):
        assert_close(Normalized("mean")(J), Mean()(J), rtol=1e-9, atol=1e-12)


def test_a_row_without_gradient_does_not_count() -> None:
    J = torch.cat([MATRICES["full_rank_5x9"], torch.zeros(1, 9, dtype=torch.float64)])
    expected = 5 / 6 * Normalized("mean")(J[:5])  # the mean of six rows, of which one is zero
    assert_close(Normalized("mean")(J), expected)
    assert not Normalized("mean")(torch.zeros(2, 3)).any()
    for length in ("geometric", "shortest"):
        assert not Normalized("mean", length=length)(torch.zeros(2, 3)).any()


def test_normalized_works_in_half_precision_and_by_name() -> None:
    J = conflicting(3, 0).to(torch.bfloat16)
    assert resolve({"name": "normalized", "aggregator": "mgda"})(J).isfinite().all()
    assert worst_cosine(resolve("normalized"), conflicting(3, 0)) > 0.1


def test_what_cannot_be_normalized_is_refused() -> None:
    for spec in ("graddrop", "uw"):
        with pytest.raises(ArgumentError, match=f"must compute weights, got {spec}"):
            Normalized(spec)
    with pytest.raises(UnknownNameError, match="`length` must be one of 'geometric', 'mean'"):
        Normalized(length="median")  # type: ignore[arg-type]
