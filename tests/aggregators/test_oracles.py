"""Methods with a state, and those from the Gramian, against loops over vectors and TorchJD."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_jd.aggregators import (
    CRMOGM,
    DBMTL,
    LRA,
    NTK,
    PCD,
    CappedMGDA,
    ConFIG,
    ExcessMTL,
    FairGrad,
    GradNorm,
    GradVac,
    MConFIG,
    MoCo,
    MoDo,
    NashMTL,
    Primary,
    SDMGrad,
    Step,
)
from lightning_jd.aggregators._halves import SUFFIXES
from lightning_jd.aggregators._random import random_orders
from lightning_jd.errors import ArgumentError
from lightning_jd.linalg import dual_cone_residuals, simplex_projection
from tests.helpers.matrices import MATRICES, normal

REAL = ["full_rank_5x9", "strongly_conflicting", "uneven_norms"]
J = MATRICES["strongly_conflicting"]


def rows(t: int, m: int = 4, n: int = 7) -> Tensor:
    return normal(300 + t, m, n)


def torchjd() -> Any:
    return pytest.importorskip("torchjd.aggregation")


# --- Primary


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("primary", [0, 3])
def test_primary_is_the_projection_of_its_gradient(name: str, primary: int) -> None:
    qpsolvers = pytest.importorskip("qpsolvers")
    A = MATRICES[name] / MATRICES[name].norm(dim=1, keepdim=True)
    d = Primary(primary, reg=0)(A)
    others = torch.cat([A[:primary], A[primary + 1 :]]).numpy()
    expected = qpsolvers.solve_qp(
        torch.eye(A.shape[1]).double().numpy(),
        -A[primary].numpy(),
        -others,
        torch.zeros(len(others)).double().numpy(),
        solver="quadprog",
    )
    assert_close(d, torch.from_numpy(expected), rtol=1e-7, atol=1e-9)
    G = A @ A.T
    u = torch.eye(len(A)).double()[primary]
    w = Primary(primary, reg=0).weights(G)
    assert max(map(float, dual_cone_residuals(G, u, w, reg=0)[:3])) <= 1e-8


def test_primary_finds_its_objective_by_name() -> None:
    step = Step(("new", "old"))
    A = torch.tensor([[1.0, 1.0], [-1.0, 0.0]])
    by_name = Primary("old", reg=0).weigh(A @ A.T, step)
    assert_close(by_name @ A, torch.tensor([-0.5, 0.5]))
    with pytest.raises(ArgumentError, match=r"`primary` must be one of .* 'other' .* 'new', 'old'"):
        Primary("other").weigh(A @ A.T, step)


def test_the_margin_of_primary_is_the_least_weight_of_the_others() -> None:
    G = J @ J.T
    w = Primary(1, margin=0.5, reg=0).weights(G)
    assert bool((w[[0, 2, 3, 4]] >= 0.5 - 1e-12).all())
    u = torch.full((5,), 0.5).double()
    u[1] = 1
    assert max(map(float, dual_cone_residuals(G, u, w, reg=0)[:3])) <= 1e-8


# --- PCD


@pytest.mark.parametrize("tau", [0.0, 0.02, 0.7])
@pytest.mark.parametrize("primary", [0, 2])
def test_pcd_is_that_of_torchjd(tau: float, primary: int) -> None:
    mine = PCD(tau=tau, primary=primary, beta=0.9)
    theirs = torchjd().PCDWeighting(tau=tau, beta=0.9, eps=0.0)
    order = [primary, *(i for i in range(4) if i != primary)]  # theirs is the first row
    for t in range(6):
        A = rows(t) * torch.tensor([[1.0], [30.0], [0.1], [2.0]], dtype=torch.float64)
        A[1] = A[1] - 40 * A[0] - 400 * A[2]  # against both
        G = A @ A.T
        expected = theirs(G[order][:, order])
        assert_close(mine.weights(G)[order], expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", [*REAL, "more_rows_than_columns", "zero_row", "duplicate_rows"])
def test_pcd_gives_every_other_objective_its_share(name: str) -> None:
    A, tau = MATRICES[name], 0.3
    unit = (A / A.norm(dim=1, keepdim=True)).nan_to_num()
    d = PCD(tau=tau)(A)
    assert_close(d.norm(), A[0].norm())
    w = PCD(tau=tau).weights(A @ A.T)
    # At the first step v = |g|², so rows have length one; undo the last scaling, w_p = 1 before it.
    step = d / (w[0] * A[0].norm())
    assert bool((unit[1:] @ step >= tau * unit[1:].norm(dim=1) ** 2 - 1e-9).all())


def test_pcd_without_a_possible_direction_is_the_primary_gradient() -> None:
    A = torch.tensor([[1.0, 2.0], [1.0, 0.0], [-3.0, 0.0]])
    assert_close(PCD(tau=0.1)(A), A[0])
    opposite = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert_close(PCD(tau=0.0)(opposite), torch.zeros(2))
    assert_close(PCD(tau=0.1)(opposite), torch.tensor([-1.0, 0.0]))  # the primary one gets worse


# --- LRA and NTK


def test_lra_is_its_definition() -> None:
    method, w = LRA(alpha=0.7), torch.ones(4, dtype=torch.float64)
    for t in range(6):
        norms = rows(t).norm(dim=1)
        w = 0.7 * w + 0.3 * norms.sum() / norms
        assert_close(method.weights(rows(t) @ rows(t).T), w, rtol=1e-12, atol=0)
    method.weights(torch.zeros(4, 4).double())
    assert_close(method.weights(torch.zeros(4, 4).double()), w)


def test_ntk_has_the_traces_of_the_kernels_of_the_residuals() -> None:
    points, terms = 6, 3
    theta = normal(1, 1, 7)[0].requires_grad_()
    features = normal(2, points * terms, 7)
    residuals = (features @ theta).sin().view(points, terms)  # not linear

    def row(value: Tensor) -> Tensor:
        return torch.autograd.grad(value, theta, retain_graph=True)[0]

    K = torch.stack([row(r) for r in residuals.flatten()]).square().sum(dim=1).view(points, terms)
    expected = K.sum() / K.sum(dim=0)
    losses = residuals.square()
    J = torch.stack([row(loss) for loss in losses.flatten()])
    names = tuple(f"{x}/{term}" for x in range(points) for term in "abc")
    step = Step(names, losses.flatten(), "instances_tasks", columns=terms)
    found = NTK().weigh(J @ J.T, step)
    assert_close(
        found.view(points, terms), (expected / points).expand(points, terms), rtol=1e-9, atol=0
    )
    # One loss per term: the gradients of the roots.
    means = losses.mean(dim=0)
    J = torch.stack([row(mean) for mean in means])
    K = torch.stack([row(mean.sqrt()) for mean in means]).square().sum(dim=1)
    assert_close(NTK().weigh(J @ J.T, Step(tuple("abc"), means)), K.sum() / K, rtol=1e-9, atol=0)
    assert not NTK().weigh(torch.zeros(3, 3), Step(tuple("abc"), torch.ones(3))).any()


# --- FairGrad


@pytest.mark.parametrize("name", [*REAL, "agreeing_rows", "orthogonal_rows"])
@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0, 10.0])
def test_fairgrad_solves_its_equation(name: str, alpha: float) -> None:
    G = MATRICES[name] @ MATRICES[name].T
    w = FairGrad(alpha).weights(G)
    assert bool((w > 0).all())
    assert_close((G @ w) * w ** (1 / alpha), torch.ones(len(w)).double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["stationary", "opposite_rows", "zero_row", "zero"])
@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_without_a_common_improvement_fairgrad_stays(name: str, alpha: float) -> None:
    assert not FairGrad(alpha)(MATRICES[name]).any()


# --- ConFIG


@pytest.mark.parametrize("name", [*REAL, "rank_two", "more_rows_than_columns", "zero_row"])
def test_config_is_that_of_torchjd(name: str) -> None:
    # Its pseudo-inverse keeps more digits of the rank where rows are dependent: six remain.
    theirs = torchjd().ConFIG()(MATRICES[name])
    assert_close(ConFIG()(MATRICES[name]), theirs, rtol=1e-6, atol=1e-6 * float(theirs.norm()))


def _config(M: Tensor) -> Tensor:
    u = torch.linalg.pinv(M / M.norm(dim=1, keepdim=True)) @ torch.ones(len(M)).double()
    u = u / u.norm()
    return (M @ u).sum() * u


def test_mconfig_is_its_pseudo_code() -> None:
    b1, b2, eps = 0.9, 0.99, 1e-8
    method = MConFIG(b1, b2, eps)
    momenta: dict[str, Tensor] = {}
    counts: dict[str, int] = {}
    before = second = torch.zeros(7).double()
    for t, names in enumerate(["abc", "abc", "a", "b", "c", "ab", "cba"], start=1):
        A = rows(t, len(names))
        for name, g in zip(names, A, strict=True):
            counts[name] = counts.get(name, 0) + 1
            momenta[name] = b1 * momenta.get(name, torch.zeros(7).double()) + (1 - b1) * g
        c = _config(torch.stack([m / (1 - b1 ** counts[k]) for k, m in momenta.items()]))
        now = (1 - b1**t) * c
        fake = (now - b1 * before) / (1 - b1)
        before, second = now, b2 * second + (1 - b2) * fake**2
        expected = c / ((second / (1 - b2**t)).sqrt() + eps)
        assert_close(method.combine(A, Step(tuple(names))), expected, rtol=1e-8, atol=1e-10)


# --- GradVac


def _gradvac(A: Tensor, targets: Tensor, orders: Tensor, beta: float) -> Tensor:
    turned = []
    for i, order in enumerate(orders.tolist()):
        g = A[i].clone()
        for j in order:
            h = A[j]
            cosine = g @ h / (g.norm() * h.norm())
            if cosine < targets[i, j]:
                sine, wanted = (1 - cosine**2).sqrt(), (1 - targets[i, j] ** 2).sqrt()
                g = (
                    g
                    + g.norm() * (targets[i, j] * sine - cosine * wanted) / (h.norm() * wanted) * h
                )
            targets[i, j] = (1 - beta) * targets[i, j] + beta * cosine
        turned.append(g)
    return torch.stack(turned).sum(dim=0)


def test_gradvac_is_its_pseudo_code() -> None:
    method, generator = GradVac(beta=0.3, seed=5), torch.Generator().manual_seed(5)
    targets = torch.zeros(4, 4).double()
    for t in range(6):
        expected = _gradvac(rows(t), targets, random_orders(4, generator), 0.3)
        assert_close(method(rows(t)), expected, rtol=1e-9, atol=1e-9)


# --- CR-MOGM


def test_crmogm_is_that_of_torchjd() -> None:
    theirs = torchjd()
    mine = CRMOGM("nashmtl", alpha=0.7)
    other = theirs.CRMOGMWeighting(_Nash(), alpha=0.7)
    for t in range(5):
        G = rows(t) @ rows(t).T
        assert_close(mine.weights(G), other(G), rtol=1e-10, atol=0)


class _Nash(torch.nn.Module):
    def forward(self, gramian: Tensor) -> Tensor:
        return NashMTL().weights(gramian)


# --- MoCo, MoDo, SDMGrad


def test_moco_is_its_pseudo_code() -> None:
    method = MoCo(beta=0.6, beta_sigma=0.3, gamma=0.05, gamma_sigma=0.2, rho=0.1)
    Y, w = torch.zeros(4, 7).double(), torch.full((4,), 0.25).double()
    for t in range(1, 8):
        Y = Y - 0.6 / t**0.3 * (Y - rows(t))
        w = simplex_projection(w - 0.05 / t**0.2 * (Y @ Y.T + 0.1 * torch.eye(4).double()) @ w)
        assert_close(method(rows(t)), w @ Y, rtol=1e-10, atol=1e-12)


def _halves(A: Tensor, B: Tensor) -> tuple[Tensor, Step]:
    """The rows of two samples, mixed, and their names."""
    names = [f"{k}{end}" for end in SUFFIXES for k in range(len(A))]
    order = [0, 5, 1, 2, 7, 3, 4, 6]
    return torch.cat([A, B])[order], Step(tuple(names[i] for i in order))


@pytest.mark.parametrize(
    ("mine", "name", "arguments"),
    [
        (MoDo(gamma=0.05, rho=0.2), "MoDoWeighting", {"gamma": 0.05, "rho": 0.2}),
        (SDMGrad(), "SDMGradWeighting", {}),
        (
            SDMGrad(lr=0.2, momentum=0.0, iterations=3, pull=0.6, preference=[1, 2, 3, 4]),
            "SDMGradWeighting",
            {
                "lr": 0.2,
                "momentum": 0.0,
                "n_iter": 3,
                "lambda_": 0.6,
                "pref_vector": torch.arange(1.0, 5.0).double(),
            },
        ),
    ],
    ids=["modo", "sdmgrad", "sdmgrad_arguments"],
)
def test_double_sampling_is_that_of_torchjd(
    mine: MoDo | SDMGrad, name: str, arguments: dict[str, Any]
) -> None:
    mine.reset()
    theirs = getattr(torchjd(), name)(**arguments)
    for t in range(6):
        A, B = rows(2 * t), rows(2 * t) + 0.3 * rows(2 * t + 1)  # two samples of the same thing
        both, step = _halves(A, B)
        w = theirs(A @ B.T)
        found = mine.weigh(both @ both.T, step) @ both
        assert_close(found, w @ (A + B) / 2, rtol=1e-6, atol=1e-7)  # it adds 1e-8 to the scale


# --- ExcessMTL, DB-MTL, GradNorm


@pytest.mark.parametrize("warmup", [1, 3])
def test_excessmtl_is_that_of_torchjd(warmup: int) -> None:
    mine = ExcessMTL(step_size=0.3, warmup=warmup)
    theirs = torchjd().ExcessMTL(robust_step_size=0.3, n_warmup_steps=warmup)
    for t in range(8):
        assert_close(mine(rows(t)), theirs(rows(t)), rtol=1e-4, atol=1e-5)  # it adds 1e-7


def test_dbmtl_is_its_pseudo_code() -> None:
    method = DBMTL(beta=0.8, sigma=0.5)
    Y = torch.zeros(4, 7).double()
    for t in range(1, 7):
        losses = normal(t, 1, 4)[0].exp()
        G = rows(t) / losses[:, None]
        Y = G + 0.8 / t**0.5 * (Y - G)
        lengths = Y.norm(dim=1)
        expected = sum(lengths.max() / lengths[i] * Y[i] for i in range(4))
        step = Step(tuple("abcd"), losses)
        assert_close(method.combine(rows(t), step), expected, rtol=1e-10, atol=1e-12)


def test_gradnorm_is_autograd_through_its_definition() -> None:
    method = GradNorm(alpha=1.2, lr=0.03)
    s = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([s], lr=0.03)
    first = normal(400, 1, 4)[0].exp()
    for t in range(25):
        losses = normal(400 + t, 1, 4)[0].exp()
        A = rows(t)
        w = 4 * s.softmax(dim=0)
        found = method.weigh(A @ A.T, Step(tuple("abcd"), losses))
        assert_close(found, w.detach(), rtol=1e-9, atol=0)
        lengths = w * A.norm(dim=1)
        ratios = losses / first
        target = (lengths.mean() * (ratios / ratios.mean()) ** 1.2).detach()
        adam.zero_grad()
        (lengths - target).abs().sum().backward()
        adam.step()


def test_arguments_must_be_in_their_range() -> None:
    for make in (
        lambda: GradVac(beta=1.5),
        lambda: CRMOGM(alpha=-0.1),
        lambda: MoCo(beta=0.0),
        lambda: MoCo(gamma=0.0),
        lambda: MoDo(gamma=-1.0),
        lambda: SDMGrad(momentum=1.0),
        lambda: SDMGrad(iterations=0),
        lambda: ExcessMTL(step_size=0.0),
        lambda: ExcessMTL(warmup=0),
        lambda: DBMTL(beta=1.0),
        lambda: GradNorm(alpha=-1.0),
        lambda: FairGrad(alpha=0.0),
        lambda: MConFIG(beta1=1.0),
        lambda: Primary(margin=-1.0),
        lambda: PCD(tau=1.5),
        lambda: PCD(beta=1.0),
        lambda: LRA(alpha=-0.1),
        lambda: CappedMGDA(cap=0.0),
        lambda: ConFIG(preference=[1.0, 0.0]),
    ):
        with pytest.raises(ArgumentError, match=r"^`\w+` must be .* got "):
            make()
