"""The column "keeps small tasks" of the table of methods, and the wrapper that gives it to all."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from torch.testing import assert_close

from lightning_jd.aggregators import (
    CRMOGM,
    RGW,
    Aggregator,
    Clip,
    Constant,
    ExcessMTL,
    FromFeatures,
    GramianAggregator,
    Krum,
    Method,
    Normalized,
    PCGrad,
    Property,
    Step,
    SubJacobians,
    TrimmedMean,
    UPGrad,
    WeightsEvery,
    available,
    resolve,
)
from lightning_jd.errors import ArgumentError, UnknownNameError
from tests.helpers.imbalance import keeps_small_tasks
from tests.helpers.matrices import EXAMPLES, MATRICES, jacobians, normal
from tests.helpers.properties import holds, of_definition, worst_conflict

METHODS = available()
WRAPPERS = [CRMOGM, FromFeatures, SubJacobians, WeightsEvery]
#: Where the constructor has no default: no weight is negative, no row is trimmed.
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


def test_a_row_without_gradient_does_not_count() -> None:
    J = torch.cat([MATRICES["full_rank_5x9"], torch.zeros(1, 9, dtype=torch.float64)])
    expected = 5 / 6 * Normalized("mean")(J[:5])  # the mean of six rows, of which one is zero
    assert_close(Normalized("mean")(J), expected)
    assert not Normalized("mean")(torch.zeros(2, 3)).any()
    for length in ("geometric", "shortest"):
        assert not Normalized("mean", length=length)(torch.zeros(2, 3)).any()


def test_what_cannot_be_normalized_is_refused() -> None:
    for spec in ("graddrop", "uw"):
        with pytest.raises(ArgumentError, match=f"must compute weights, got {spec}"):
            Normalized(spec)
    with pytest.raises(UnknownNameError, match="`length` must be one of 'geometric', 'mean'"):
        Normalized(length="median")  # type: ignore[arg-type]


# --- SubJacobians


def test_sub_jacobians_are_random_parts_that_cover_all_rows() -> None:
    J = normal(7, 23, 30)
    method, draws = SubJacobians("upgrad", rows=8, seed=4), torch.Generator().manual_seed(4)
    found = []
    for _ in range(2):
        expected = torch.zeros(30, dtype=torch.float64)
        for part in torch.randperm(23, generator=draws).tensor_split(3):
            assert len(part) in (7, 8)
            expected += len(part) / 23 * UPGrad()(J[part])
        found.append(method(J))
        assert_close(found[-1], expected, rtol=1e-9, atol=1e-12)
    assert not torch.equal(found[0], found[1]), "each step has its own parts"
    assert_close(SubJacobians("upgrad", rows=23)(J), UPGrad()(J))


def test_sub_jacobians_keep_names_and_values_of_their_rows() -> None:
    names = tuple(f"task {i}" for i in range(9))
    seen: dict[str, float] = {}

    class Watches(UPGrad):
        def weigh(self, gramian: torch.Tensor, step: Step) -> torch.Tensor:
            assert step.values is not None
            assert_close(gramian.diagonal(), step.values)
            seen.update(zip(step.names, step.values.tolist(), strict=True))
            return super().weigh(gramian, step)

    values = torch.arange(1.0, 10.0)
    SubJacobians(Watches(), rows=4).weigh(values.diag(), Step(names, values))
    assert seen == dict(zip(names, values.tolist(), strict=True))


def test_sub_jacobians_refuse_a_state() -> None:
    with pytest.raises(ArgumentError, match="`aggregator` must have no state, got gradnorm"):
        SubJacobians("gradnorm")
    with pytest.raises(ArgumentError, match="`rows` must be an integer of at least 1, got 0"):
        SubJacobians(rows=0)


# --- Every registered aggregator, every property, every matrix of the shared set


CLASSES = available("aggregators")
CLAIM_NON_CONFLICTING = [
    cls for cls in CLASSES.values() if Property.NON_CONFLICTING in cls.properties
]


@pytest.mark.slow
@pytest.mark.parametrize("prop", Property, ids=lambda prop: prop.name.lower())
@pytest.mark.parametrize("cls", CLASSES.values(), ids=CLASSES)
def test_a_property_is_claimed_exactly_when_it_holds(cls: type[Aggregator], prop: Property) -> None:
    failures = [
        name
        for name, J in MATRICES.items()
        if not holds(prop, lambda J=J: of_definition(cls, len(J)), J)
    ]
    if prop in cls.properties:
        assert not failures, "claimed, but fails on these matrices"
    else:
        assert failures, "nothing contradicts it: claim it, or add the counterexample"


@pytest.mark.parametrize("cls", CLASSES.values(), ids=CLASSES)
def test_exactly_those_that_claim_to_be_weighted_give_weights(cls: type[Aggregator]) -> None:
    needs_more_than_products = cls is ExcessMTL  # of its weights: the squares of all entries
    gives = issubclass(cls, GramianAggregator) or needs_more_than_products
    assert gives == (Property.WEIGHTED in cls.properties)


@pytest.mark.parametrize("cls", CLAIM_NON_CONFLICTING, ids=lambda cls: cls.name)
@EXAMPLES
@given(J=jacobians())
def test_no_conflict_at_any_shape_rank_and_scale(cls: type[Aggregator], J: torch.Tensor) -> None:
    assert worst_conflict(of_definition(cls, len(J)), J) <= 1e-8


@EXAMPLES
@given(J=jacobians())
def test_what_the_regularisation_of_upgrad_concedes_is_bounded(J: torch.Tensor) -> None:
    # H w >= 0 with H = G / tr(G) + reg I is g_i d >= -reg tr(G) w_i, row by row.
    G = J @ J.T
    w = UPGrad().weights(G)
    rounding = 1e-10 * G.diagonal().sqrt() * (G.diagonal().sqrt() @ w)
    assert bool((G @ w >= -1e-4 * G.trace() * w - rounding).all())


@pytest.mark.parametrize("cls", [PCGrad, RGW], ids=lambda cls: cls.name)
def test_random_orders_are_permutation_invariant_in_distribution(cls: type[PCGrad | RGW]) -> None:
    J, draws = MATRICES["paper_pcgrad"], 1000
    means = []
    for permuted in (J, J.flip(0)):
        aggregator = cls(seed=1)
        outcomes = torch.stack([aggregator(permuted) for _ in range(draws)])
        means.append(outcomes.mean(dim=0))
    assert (means[0] - means[1]).norm() <= 4 * float(outcomes.std(dim=0).norm()) * math.sqrt(
        2 / draws
    )
