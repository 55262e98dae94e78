"""The functions against brute force on the Jacobian in float64, closed forms, and odd inputs."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_jd import metrics
from lightning_jd.errors import ArgumentError, ShapeError
from lightning_jd.metrics import (
    Direction,
    conflict_rate,
    conflict_summary,
    dual_cone_violation,
    largest_weight,
    norm_imbalance,
    pairwise_cosines,
    predicted_change,
    row_norms,
    similarity_to_mean,
    stationarity_distance,
    weight_entropy,
)

SHAPES = [(1, 3), (2, 5), (3, 2), (8, 20), (32, 7)]


def sample(m: int, n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    J = torch.randn(m, n, generator=generator, dtype=torch.float64)
    J *= torch.logspace(-2, 2, m, dtype=J.dtype)[:, None]  # norms over four decades
    return J, torch.rand(m, generator=generator, dtype=torch.float64)


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()))


@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_angles_are_those_of_the_vectors_themselves(m: int, n: int) -> None:
    J, w = sample(m, n)
    d, mean = J.T @ w, J.mean(dim=0)
    for arguments in ({"gramian": J @ J.T, "weights": w}, {"jacobian": J, "update": d}):
        assert float(similarity_to_mean(**arguments)) == pytest.approx(cosine(d, mean), abs=1e-9)
        found = dual_cone_violation(**arguments)
        for direction, share, worst in (
            (d, found.share, found.worst_cosine),
            (mean, found.mean_share, found.mean_worst_cosine),
        ):
            cosines = [cosine(g, direction) for g in J]
            assert float(worst) == pytest.approx(min(cosines), abs=1e-9)
            assert float(share) == pytest.approx(sum(c < -1e-3 for c in cosines) / m)


@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_pairs_and_norms_are_those_of_the_rows(m: int, n: int) -> None:
    J, _ = sample(m, n)
    G = J @ J.T
    C = torch.tensor([[cosine(g, h) for h in J] for g in J], dtype=torch.float64)
    assert_close(pairwise_cosines(G), C, rtol=0, atol=1e-12)
    pairs = [C[i, j] < -1e-3 for i in range(m) for j in range(i)]
    assert float(conflict_rate(G)) == pytest.approx(sum(map(float, pairs)) / max(len(pairs), 1))
    assert_close(row_norms(G), J.norm(dim=1))
    logs = J.norm(dim=1).log()
    expected = math.exp(logs.std(correction=0)) if m > 1 else 1.0
    assert float(norm_imbalance(G)) == pytest.approx(expected)


@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_no_convex_combination_is_shorter_than_the_distance_to_stationarity(m: int, n: int) -> None:
    J, _ = sample(m, n)
    found = float(stationarity_distance(J @ J.T)) * float(J.norm(dim=1).mean())
    exponential = torch.distributions.Exponential(torch.ones(m, dtype=J.dtype))
    torch.manual_seed(0)
    combinations = torch.nn.functional.normalize(exponential.sample((2000,)), p=1, dim=1)
    combinations = torch.cat([combinations, torch.eye(m, dtype=J.dtype)])
    lengths = (combinations @ J).norm(dim=1)
    assert 0 <= found <= float(lengths.min()) * (1 + 1e-9)


def test_distance_to_stationarity_of_two_gradients_in_closed_form() -> None:
    g, h = J = torch.tensor([[3.0, 1.0], [-1.0, 1.0]], dtype=torch.float64)
    area = float((g[0] * h[1] - g[1] * h[0]).abs())
    expected = area / float((g - h).norm()) / float(J.norm(dim=1).mean())  # height of the triangle
    assert float(stationarity_distance(J @ J.T)) == pytest.approx(expected, rel=1e-9)


def values(G: Tensor, w: Tensor) -> dict[str, float]:
    return conflict_summary(G, w, stationarity=True).to_dict()


@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_the_summary_equals_the_functions(m: int, n: int) -> None:
    J, w = sample(m, n)
    G = J @ J.T
    found = dual_cone_violation(G, w)
    assert values(G, w) == pytest.approx(
        {
            "similarity_to_mean": float(similarity_to_mean(G, w)),
            "violation_share": float(found.share),
            "violation_worst_cosine": float(found.worst_cosine),
            "mean_violation_share": float(found.mean_share),
            "mean_violation_worst_cosine": float(found.mean_worst_cosine),
            "conflict_rate": float(conflict_rate(G)),
            "norm_imbalance": float(norm_imbalance(G)),
            "weight_entropy": float(weight_entropy(w)),
            "largest_weight": float(largest_weight(w)),
            "stationarity_distance": float(stationarity_distance(G)),
        }
    )


def test_the_summary_leaves_out_what_it_cannot_know() -> None:
    J, w = sample(3, 5)
    of_weights = conflict_summary(J @ J.T, w).to_dict()
    of_update = conflict_summary(J @ J.T, jacobian=J, update=J.T @ w).to_dict()
    of_gradients = conflict_summary(J @ J.T).to_dict()
    assert set(of_weights) - set(of_update) == {"weight_entropy", "largest_weight"}
    assert of_update == pytest.approx({name: of_weights[name] for name in of_update})
    assert list(of_gradients) == [
        "mean_violation_share",
        "mean_violation_worst_cosine",
        "conflict_rate",
        "norm_imbalance",
    ]
    assert of_gradients == pytest.approx({name: of_weights[name] for name in of_gradients})


@pytest.mark.parametrize("m", [1, 4])
def test_no_gradient_no_conflict(m: int) -> None:
    found = values(torch.zeros(m, m), torch.ones(m))
    assert found["norm_imbalance"] == 1
    assert found["stationarity_distance"] == 0
    for name in (
        "similarity_to_mean",
        "violation_share",
        "violation_worst_cosine",
        "conflict_rate",
    ):
        assert found[name] == 0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: similarity_to_mean(torch.eye(2)), ArgumentError, "got `gramian`"),
        (lambda: similarity_to_mean(), ArgumentError, "got none of them"),
        (lambda: dual_cone_violation(jacobian=torch.eye(2)), ArgumentError, "as `jacobian` and"),
        (
            lambda: similarity_to_mean(torch.eye(2), torch.ones(3)),
            ShapeError,
            r"one entry per objective \(2\), got shape \(3,\)",
        ),
        (
            lambda: similarity_to_mean(jacobian=torch.ones(2, 3), update=torch.ones(2)),
            ShapeError,
            r"`update` must have one entry per column of the Jacobian, shape \(3,\), got \(2,\)",
        ),
        (lambda: conflict_rate(torch.ones(2, 3)), ShapeError, "`gramian` must be square"),
        (lambda: conflict_rate(torch.eye(2), tolerance=2), ArgumentError, r"in \[0, 1\), got 2"),
        (lambda: weight_entropy(torch.eye(2)), ShapeError, r"shape \(m,\), got \(2, 2\)"),
        (
            lambda: predicted_change(torch.eye(2), learning_rate=1.0),
            ArgumentError,
            "A step must be given as .* got no complete pair",
        ),
    ],
)
def test_wrong_arguments_are_named(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


def test_groups_with_weights_of_their_own_make_one_update() -> None:
    J, _ = sample(4, 10)
    parts = [J[:, :3], J[:, 3:]]
    weights = torch.rand(2, 4, generator=torch.Generator().manual_seed(1), dtype=J.dtype)
    d = torch.cat([part.T @ w for part, w in zip(parts, weights, strict=True)])
    groups = [Direction.of_weights(A @ A.T, w) for A, w in zip(parts, weights, strict=True)]
    found = conflict_summary(J @ J.T, update=Direction.joined(groups)).to_dict()
    assert found == pytest.approx(conflict_summary(J @ J.T, jacobian=J, update=d).to_dict())


def test_the_name_of_before_warns() -> None:
    with pytest.warns(FutureWarning, match=r"row_norms\(gramian\)` since 0.3"):
        assert metrics.gradient_norms is row_norms
    with pytest.raises(AttributeError, match="has no attribute 'gradient_nroms'"):
        _ = metrics.gradient_nroms
