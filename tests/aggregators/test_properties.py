"""Every registered aggregator, every property, every matrix of the shared set."""

import math

import pytest
import torch
from hypothesis import given

from lightning_jd.aggregators import (
    RGW,
    Aggregator,
    ExcessMTL,
    GramianAggregator,
    PCGrad,
    Property,
    UPGrad,
    available,
)
from tests.helpers.matrices import EXAMPLES, MATRICES, jacobians
from tests.helpers.properties import holds, of_definition, worst_conflict

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
