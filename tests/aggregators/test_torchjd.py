"""TorchJD as an oracle where the definitions coincide, and its objects as aggregators."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from lightning_jd import aggregators as ours
from lightning_jd.aggregators import Aggregator, GramianAggregator, resolve
from tests.helpers.matrices import MATRICES

pytest.importorskip("torchjd")

from torchjd import aggregation as theirs
from torchjd.linalg import QuadprogProjector

J = MATRICES["strongly_conflicting"]
EXACT = QuadprogProjector(norm_eps=0.0, reg_eps=1e-12)
SAME = {
    "upgrad": (ours.UPGrad(reg=0), theirs.UPGrad(projector=EXACT)),
    "upgrad_default": (ours.UPGrad(), theirs.UPGrad()),
    "upgrad_preference": (
        ours.UPGrad([1, 2, 3, 4, 5]),
        theirs.UPGrad(pref_vector=torch.arange(1.0, 6.0, dtype=torch.float64)),
    ),
    "dualproj": (ours.DualProj(reg=0), theirs.DualProj(projector=EXACT)),
    "dualproj_default": (ours.DualProj(), theirs.DualProj()),
    "imtlg": (ours.IMTLG(), theirs.IMTLG()),
    "alignedmtl": (ours.AlignedMTL(), theirs.AlignedMTL()),
    "mean": (ours.Mean(), theirs.Mean()),
    "sum": (ours.Sum(), theirs.Sum()),
    "constant": (ours.Constant(range(5)), theirs.Constant(torch.arange(5.0).double())),
}


@pytest.mark.parametrize("name", ["full_rank_5x9", "strongly_conflicting"])
@pytest.mark.parametrize(("mine", "other"), SAME.values(), ids=SAME)
def test_we_agree(mine: Aggregator, other: Any, name: str) -> None:
    # Quadprog with negligible regularisation gives about six digits.
    assert_close(mine(MATRICES[name]), other(MATRICES[name]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "candidate",
    [theirs.UPGrad(), theirs.UPGradWeighting(), theirs.Krum(0, 1), theirs.KrumWeighting(0, 1)],
    ids=lambda candidate: type(candidate).__name__,
)
def test_what_needs_the_gramian_only_stays_so(candidate: Any) -> None:
    aggregator = resolve(candidate)
    assert isinstance(aggregator, GramianAggregator)
    expected = candidate(J) if isinstance(candidate, theirs.Aggregator) else candidate(J @ J.T) @ J
    assert_close(aggregator(J), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        (theirs.Mean(), J.mean(dim=0)),
        (theirs.MeanWeighting(), J.mean(dim=0)),
        (theirs.SumWeighting(), J.sum(dim=0)),
        (theirs.Constant(torch.ones(5).double()), J.sum(dim=0)),
    ],
    ids=lambda candidate: type(candidate).__name__,
)
def test_what_only_counts_the_rows_needs_the_gramian_only(
    candidate: Any, expected: torch.Tensor
) -> None:
    aggregator = resolve(candidate)
    assert isinstance(aggregator, GramianAggregator)
    assert_close(aggregator(J), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "candidate",
    [theirs.TrimmedMean(1), theirs.ConFIG()],
    ids=lambda candidate: type(candidate).__name__,
)
def test_what_needs_the_jacobian_gets_it(candidate: Any) -> None:
    aggregator = resolve(candidate)
    assert not isinstance(aggregator, GramianAggregator)
    assert_close(aggregator(J), candidate(J), rtol=1e-12, atol=0)
