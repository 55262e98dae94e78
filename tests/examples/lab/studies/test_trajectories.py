"""What the paper says of its two quadratic functions, aggregator by aggregator."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from examples.lab.studies._quadratics import (
    CONVEX_FORM,
    ELEMENT_WISE,
    Quadratics,
    distance_to_curve,
)
from examples.lab.studies._settings import PAPER_AGGREGATORS, settings_of
from examples.lab.studies.trajectories import SCENES, follow

pytestmark = pytest.mark.slow

EWQ, CQF = SCENES
SETTINGS = {setting.aggregator: setting for setting in settings_of(PAPER_AGGREGATORS, (0.0,))}
#: As in the paper, but for two: by its definition CAGrad with c < 1 moves with the mean wherever
#: that moves (see below), and IMTL-G moves both coordinates alike, so that one arrives first.
STOP_ON_THE_AXES = {"mgda", "nashmtl", "alignedmtl", "imtlg"}
LET_A_VALUE_RISE = {"mean", "graddrop", "imtlg", "cagrad", "rgw", "alignedmtl"}


@pytest.mark.parametrize("function", [ELEMENT_WISE, CONVEX_FORM], ids=["ewq", "cqf"])
def test_the_jacobian_is_that_of_the_values(function: Quadratics) -> None:
    x = torch.tensor([0.7, -1.3], dtype=torch.float64)
    expected = torch.autograd.functional.jacobian(function.values, x)
    torch.testing.assert_close(function.jacobian(x), expected)


def test_gradients_of_the_convex_form_meet_as_the_paper_says() -> None:
    def cosine(x: Tensor) -> Tensor:
        return torch.nn.functional.cosine_similarity(*CONVEX_FORM.jacobian(x), dim=-1)

    assert float(cosine(torch.zeros(2, dtype=torch.float64))) == pytest.approx(-0.925, abs=5e-4)
    inside = CONVEX_FORM.pareto_set()[1:-1:100]
    for point in inside:  # opposed on the Pareto set
        assert float(cosine(point)) == pytest.approx(-1.0, abs=1e-6)


@pytest.mark.parametrize("name", PAPER_AGGREGATORS)
def test_who_reaches_the_pareto_set_where_nothing_conflicts(name: str) -> None:
    ends = follow(EWQ, SETTINGS[name]).points[:, -1]
    distances = distance_to_curve(ends, EWQ.function.pareto_set())
    off = distances > 0.1
    assert bool(off.any()) == (name in STOP_ON_THE_AXES), distances
    # Who does not arrive has stopped on an axis: weakly stationary, and far from optimal.
    assert (ends[off].abs().amin(dim=1) < 1e-3).all()
    assert (distances[off] > 0.5).all()


@pytest.mark.parametrize("name", PAPER_AGGREGATORS)
def test_who_lets_a_value_rise_where_gradients_conflict(name: str) -> None:
    # IMTL-G only errs where the gradients have become opposed, far along a path.
    found = follow(replace(CQF, steps=400 if name == "imtlg" else 200), SETTINGS[name])
    if name in LET_A_VALUE_RISE:
        assert found.worst_cosine < -0.01
    else:
        assert found.worst_cosine > -1e-6


def test_upgrad_reaches_the_pareto_set_of_the_convex_form() -> None:
    ends = follow(CQF, SETTINGS["upgrad"]).points[:, -1]
    assert distance_to_curve(ends, CQF.function.pareto_set()).max() < 1e-3
