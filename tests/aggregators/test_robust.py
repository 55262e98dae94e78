"""Krum and TrimmedMean against their definitions, and against rows that are anything."""

import statistics
from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from lightning_jd.aggregators import Krum, TrimmedMean
from lightning_jd.errors import ArgumentError
from tests.helpers.matrices import EXAMPLES, matrix, normal

HOSTILE = {"far": 1e6, "opposite": -10.0, "zero": 0.0, "slightly off": 1.5}


def by_vectors(J: Tensor, n_byzantine: int, n_selected: int) -> Tensor:
    """The definition: distances between vectors, sums of the nearest, the best of all."""
    scores = []
    for i, g in enumerate(J):
        squared = sorted(float((g - h).square().sum()) for j, h in enumerate(J) if j != i)
        scores.append(sum(squared[: len(J) - n_byzantine - 2]))
    best = sorted(range(len(J)), key=scores.__getitem__)[:n_selected]
    return J[best].mean(dim=0)


def with_hostile_rows(factor: float, f: int) -> Tensor:
    """Seven rows that nearly agree, f of which have been replaced."""
    honest = normal(0, 1, 6) + 0.1 * normal(1, 7, 6)
    honest[:f] *= factor
    return honest


@EXAMPLES
@given(m=st.integers(5, 9), n=st.integers(1, 6), seed=st.integers(0, 2**16), data=st.data())
def test_krum_is_what_vectors_give(m: int, n: int, seed: int, data: st.DataObject) -> None:
    f = data.draw(st.integers(0, (m - 3) // 2))
    selected = data.draw(st.integers(1, m - f))
    J = normal(seed, m, n)
    assert_close(Krum(f, selected)(J), by_vectors(J, f, selected), rtol=1e-9, atol=1e-12)


@EXAMPLES
@given(m=st.integers(1, 9), n=st.integers(1, 6), seed=st.integers(0, 2**16), data=st.data())
def test_the_trimmed_mean_is_what_sorted_lists_give(
    m: int, n: int, seed: int, data: st.DataObject
) -> None:
    trim = data.draw(st.integers(0, (m - 1) // 2))
    J = normal(seed, m, n)
    expected = [statistics.fmean(sorted(column)[trim : m - trim]) for column in J.T.tolist()]
    assert_close(TrimmedMean(trim)(J), J.new_tensor(expected), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("factor", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("f", [1, 2])
def test_rows_that_are_anything_do_not_move_the_result_far(factor: float, f: int) -> None:
    J = with_hostile_rows(factor, f)
    honest = J[f:]
    spread = max(float((g - h).norm()) for g, h in combinations(honest, 2))
    for aggregator in (Krum(f), Krum(f, len(honest)), TrimmedMean(f)):
        assert (aggregator(J) - honest.mean(dim=0)).norm() <= 2 * spread
    if abs(factor) > 2:  # not so the mean, which shows that the rows are hostile
        assert (J.mean(dim=0) - honest.mean(dim=0)).norm() > 2 * spread


def test_rows_that_cannot_be_told_apart_share_their_place() -> None:
    pair = matrix([1.0, 0.0], [1.0, 0.1], [5.0, 5.0])  # with one neighbour, the closest two tie
    assert_close(Krum(0)(pair), pair[:2].mean(dim=0), rtol=1e-15, atol=0)
    assert_close(Krum(0).weights(torch.eye(4)), torch.full((4,), 0.25), rtol=0, atol=0)
    # One row is clearly the best; two more share the second place.
    line = matrix([0.0], [1.0], [2.0], [30.0])
    assert_close(
        Krum(0, 2).weights(line @ line.T), line.new_tensor([0.25, 0.5, 0.25, 0]), rtol=0, atol=0
    )


def test_torchjd_agrees_where_distances_and_their_squares_choose_alike() -> None:
    theirs = pytest.importorskip("torchjd").aggregation
    for factor in (1e6, -10.0):
        J = with_hostile_rows(factor, 2)
        pairs: list[tuple[Any, Any]] = [
            (Krum(2), theirs.Krum(2)),
            (Krum(2, n_selected=5), theirs.Krum(2, n_selected=5)),
            (TrimmedMean(2), theirs.TrimmedMean(2)),
        ]
        for ours, other in pairs:
            assert_close(ours(J), other(J), rtol=1e-10, atol=0)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Krum(-1), r"`n_byzantine` must be an integer of at least 0, got -1"),
        (lambda: Krum(1.5), r"`n_byzantine` must be an integer of at least 0, got 1\.5"),
        (lambda: Krum(1, n_selected=0), r"`n_selected` must be an integer of at least 1, got 0"),
        (lambda: TrimmedMean(True), r"`trim` must be an integer of at least 0, got True"),
    ],
)
def test_arguments_are_checked(build: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        build()
