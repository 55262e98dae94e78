"""UPGrad and DualProj: closed forms, the numbers of the paper, and what `reg` does."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from lightning_jd.aggregators import DualProj, Primary, Step, UPGrad
from lightning_jd.errors import UnknownNameError
from lightning_jd.linalg import dual_cone_weights
from tests.helpers.matrices import EXAMPLES, MATRICES, jacobians, normal, size

PAIR = MATRICES["conflicting_pair"]


def test_two_conflicting_rows_have_a_closed_form() -> None:
    g, h = PAIR
    expected = (g - (g @ h) / (h @ h) * h + h - (g @ h) / (g @ g) * g) / 2
    assert_close(UPGrad(reg=0)(PAIR), expected, rtol=1e-12, atol=0)


def test_the_numbers_of_the_paper_and_of_the_default_regularisation() -> None:
    exact = torch.tensor([0.2924, 1.9006, 1.9006], dtype=torch.float64)
    default = torch.tensor([0.2929, 1.9004, 1.9004], dtype=torch.float64)
    assert_close(UPGrad(reg=0)(PAIR), exact, rtol=0, atol=5e-5)
    assert_close(UPGrad()(PAIR), default, rtol=0, atol=5e-5)


@pytest.mark.parametrize(("a", "expected"), [(2.0, [0.0, 2.0]), (0.6, [0.4, 0.6])])
def test_dualproj_on_the_example_of_the_paper(a: float, expected: list[float]) -> None:
    J = torch.tensor([[2.0, 0.0], [-2 * a, 2 * a]], dtype=torch.float64)
    assert_close(
        DualProj(reg=0)(J), torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12
    )


def test_a_preference_weights_the_projections() -> None:
    g, h = PAIR
    projected = torch.stack([g - (g @ h) / (h @ h) * h, h - (g @ h) / (g @ g) * g])
    preference = torch.tensor([0.3, 2.0], dtype=torch.float64)
    assert_close(UPGrad([0.3, 2.0], reg=0)(PAIR), preference @ projected, rtol=1e-12, atol=0)
    # h alone counts in the target 2 h + 0.3 g: only g is violated, and is projected away.
    target = preference @ PAIR
    expected = target - (target @ g) / (g @ g) * g
    assert_close(DualProj([0.3, 2.0], reg=0)(PAIR), expected, rtol=1e-12, atol=0)


# The scale of `reg`


def step(J: Tensor, kind: str = "tasks") -> Step:
    return Step(tuple(map(str, range(len(J)))), kind=kind)


DUAL_CONE = [UPGrad, DualProj, Primary]


@pytest.mark.parametrize("cls", DUAL_CONE)
def test_the_kind_of_the_rows_decides_unless_it_is_given(cls: type[UPGrad]) -> None:
    J = MATRICES["uneven_norms"]
    G = J @ J.T
    row, trace = (cls(relative_to=scale).weights(G) for scale in ("row", "trace"))
    assert not torch.allclose(row, trace, rtol=1e-2)
    for kind, expected in (("tasks", row), ("ranks", row), ("instances", trace), ("", trace)):
        assert_close(cls().weigh(G, step(J, kind)), expected, rtol=0, atol=0)
        assert_close(cls(relative_to="trace").weigh(G, step(J, kind)), trace, rtol=0, atol=0)
        assert_close(cls(relative_to="row").weigh(G, step(J, kind)), row, rtol=0, atol=0)
    assert_close(cls().weights(G), trace, rtol=0, atol=0)
    assert_close(cls()(J), trace @ J, rtol=1e-12, atol=0)


@pytest.mark.parametrize("cls", DUAL_CONE)
def test_rows_of_the_same_task_share_a_scale(cls: type[UPGrad]) -> None:
    J = MATRICES["strongly_conflicting"][:4] * torch.tensor([1, 1e3, 2, 3e3]).double()[:, None]
    G = J @ J.T
    names = Step(("0/0", "0/1", "1/0", "1/1"), kind="instances_tasks", columns=2)
    # A row that was left out takes its name along.
    kept = Step(("0/0", "0/1", "1/1"), kind="instances")
    rest = G[[0, 1, 3]][:, [0, 1, 3]]
    for told, gramian, blocks in ((names, G, (0, 1, 0, 1)), (kept, rest, (0, 1, 1))):
        m = len(gramian)
        mean = torch.full((m,), 1 / m, dtype=J.dtype)
        targets = {UPGrad: mean.diag(), DualProj: mean, Primary: torch.eye(m).double()[0]}[cls]
        expected = dual_cone_weights(gramian, targets, relative_to=blocks).reshape(-1, m)
        assert_close(cls().weigh(gramian, told), expected.sum(dim=0), rtol=1e-9, atol=0)


@pytest.mark.parametrize("cls", DUAL_CONE)
@EXAMPLES
@given(J=jacobians())
def test_what_a_task_concedes_is_relative_to_its_own_gradient(cls: type[UPGrad], J: Tensor) -> None:
    # H w >= 0 with H = G + reg diag(G) is g_i d >= -reg |g_i|^2 w_i, row by row, above the floor.
    G = J @ J.T
    squares = G.diagonal()
    w = cls().weigh(G, step(J))
    rounding = 1e-10 * squares.sqrt() * (squares.sqrt() @ w)
    seen = squares >= 1e-12 * squares.sum()
    assert bool((G @ w >= -1e-4 * squares * w - rounding)[seen].all())


@EXAMPLES
@given(J=jacobians(), seed=st.integers(0, 99))
def test_for_tasks_upgrad_is_linear_under_scaling_at_its_default(J: Tensor, seed: int) -> None:
    lengths = J.norm(dim=1)
    assume(bool((lengths > 1e-3 * lengths.max()).all()))  # above the floor on both sides
    a, b = normal(seed, 2, len(J)).exp()[:, :, None]
    upgrad = UPGrad()
    both, one, other = (upgrad.weigh((c * J) @ (c * J).T, step(J)) @ (c * J) for c in (a + b, a, b))
    assert (both - one - other).norm() <= 1e-8 * size((a + b) * J)


def test_a_task_a_thousand_times_smaller_is_protected_by_default() -> None:
    # Two gradients at 120 degrees.
    for ratio in (1, 10, 100, 1000, 1e5):
        J = torch.tensor([[ratio, 0.0], [-0.5, 0.75**0.5]], dtype=torch.float64)
        d = UPGrad().weigh(J @ J.T, step(J)) @ J
        assert float(J[1] @ d / d.norm()) >= -1e-3
    d = UPGrad(relative_to="trace").weigh(J @ J.T, step(J)) @ J
    assert float(J[1] @ d / d.norm()) == pytest.approx(-0.5, abs=1e-3)


def test_an_unknown_scale_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="'auto', 'row', 'trace', got 'rows'"):
        UPGrad(relative_to="rows")  # type: ignore[arg-type]
