"""The torchmetrics: means over updates, histories, resets, copies, checkpoints, collections."""

import pickle

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torchmetrics import Metric, MetricCollection

from lightning_jd.metrics import (
    ConflictRate,
    ConflictSummary,
    DualConeViolation,
    NormImbalance,
    PairwiseCosine,
    PredictedChange,
    SimilarityToMean,
    StationarityDistance,
    TaskWeights,
    WeightEntropy,
    conflict_rate,
    conflict_summary,
    norm_imbalance,
    pairwise_cosines,
    similarity_to_mean,
)

NAMES = ("depth", "normals", "labels")
METRICS: dict[str, Metric] = {
    "similarity": SimilarityToMean(),
    "violation": DualConeViolation(),
    "conflict": ConflictRate(),
    "imbalance": NormImbalance(),
    "entropy": WeightEntropy(),
    "task_weights": TaskWeights(NAMES),
    "cosines": PairwiseCosine(NAMES),
    "stationarity": StationarityDistance(),
    "summary": ConflictSummary(stationarity=True),
    "prediction": PredictedChange(NAMES),
}
each_metric = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)


def step(seed: int, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    J = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    before, after, w = torch.rand(3, 3, generator=generator, dtype=torch.float64)
    G = J @ J.T
    values = {
        "gramian": G,
        "weights": w,
        "predicted": -0.1 * G @ w,
        "before": before,
        "after": after,
    }
    return {name: value.to(dtype) for name, value in values.items()}


def fed(metric: Metric, seeds: range, dtype: torch.dtype = torch.float64) -> Metric:
    metric = metric.clone()
    metric.reset()
    metric.set_dtype(torch.float64)
    for seed in seeds:
        metric.update(**metric._filter_kwargs(**step(seed, dtype)))
    return metric


@each_metric
def test_a_reset_forgets_everything(metric: Metric) -> None:
    used = fed(metric, range(5))
    used.reset()
    for seed in range(5, 8):
        used.update(**used._filter_kwargs(**step(seed)))
    assert_close(used.compute(), fed(metric, range(5, 8)).compute())


@each_metric
def test_a_pickle_and_a_checkpoint_continue(metric: Metric) -> None:
    expected = fed(metric, range(6)).compute()
    used = fed(metric, range(4))
    used.persistent(True)
    restored = metric.clone().set_dtype(torch.float64)
    restored.persistent(True)
    restored.load_state_dict(used.state_dict())
    for copy in (pickle.loads(pickle.dumps(used)), restored):
        for seed in (4, 5):
            copy.update(**copy._filter_kwargs(**step(seed)))
        assert_close(copy.compute(), expected)
        if hasattr(copy, "history"):
            assert len(copy.history().updates) == 6


def test_means_are_means() -> None:
    steps = [step(seed) for seed in range(20)]
    expected = {
        "similarity": torch.stack(
            [similarity_to_mean(s["gramian"], s["weights"]) for s in steps]
        ).mean(),
        "conflict": torch.stack([conflict_rate(s["gramian"]) for s in steps]).mean(),
        "imbalance": torch.stack([norm_imbalance(s["gramian"]).log() for s in steps]).mean().exp(),
        "cosines": torch.stack([pairwise_cosines(s["gramian"]) for s in steps]).mean(dim=0),
    }
    for name, value in expected.items():
        assert_close(fed(METRICS[name], range(20)).compute(), value)
    summary = fed(METRICS["summary"], range(20)).compute()
    stacked = torch.stack(
        [conflict_summary(s["gramian"], s["weights"], stationarity=True).values for s in steps]
    )
    assert_close(torch.stack(list(summary.values())), stacked.mean(dim=0))


@pytest.mark.parametrize("updates", [1, 256, 257, 1000, 5000])
def test_a_long_history_keeps_its_mean_and_its_shape(updates: int) -> None:
    metric = WeightEntropy().set_dtype(torch.float64)
    even, single = torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0])
    for number in range(updates):  # entropy 1 in the first half of training, 0 in the second
        metric.update(even if number < updates / 2 else single)
    updates_seen, mean, deviation = metric.history()
    assert len(updates_seen) == len(mean) == len(deviation) <= 256
    assert updates_seen.max() < updates + metric.width
    assert float(metric.compute()) == pytest.approx(-(-updates // 2) / updates)
    assert float(mean[0]) == pytest.approx(1, abs=1e-6)
    if updates > 1:
        assert float(mean[-1]) == 0
    assert float(deviation.nan_to_num().max()) <= 0.5


def test_methods_without_weights_hand_in_jacobian_and_update() -> None:
    J = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    w = torch.tensor([0.2, 0.3, 0.5])
    for cls in (SimilarityToMean, DualConeViolation):
        by_weights, by_update = cls(), cls()
        by_weights.update(J @ J.T, w)
        by_update.update(jacobian=J, update=J.T @ w)
        assert_close(by_update.compute(), by_weights.compute(), rtol=1e-4, atol=1e-5)
    summary = ConflictSummary()
    summary.update(J @ J.T, jacobian=J, update=J.T @ w)
    assert_close(
        summary.compute()["similarity_to_mean"],
        similarity_to_mean(J @ J.T, w),
        rtol=1e-4,
        atol=1e-5,
    )
    assert summary.compute()["weight_entropy"].isnan()  # never known


def test_a_missing_task_leaves_the_others_alone() -> None:
    weights = TaskWeights(NAMES)
    weights.update(torch.tensor([0.2, 0.3, 0.5]))
    weights.update(torch.tensor([0.1, 0.6]), names=["labels", "depth"])
    found = {name: round(float(value), 6) for name, value in weights.compute().items()}
    assert found == {"depth": 0.4, "normals": 0.3, "labels": 0.3}
    prediction = PredictedChange(NAMES)
    one = torch.ones(1)
    prediction.update(-one, one, 0.5 * one, names=["normals"])
    assert_close(
        prediction.compute()["ratio"], torch.tensor([torch.nan, 0.5, torch.nan]), equal_nan=True
    )


def test_the_prediction_holds_for_a_linear_loss_and_half_for_a_parabola() -> None:
    x = torch.tensor([2.0, -1.0], dtype=torch.float64)
    A = torch.tensor([[1.0, 2.0], [3.0, -1.0]], dtype=torch.float64)

    def losses(x: Tensor) -> Tensor:
        return torch.stack([A[0] @ x, (A[1] @ x).square()])

    J = torch.autograd.functional.jacobian(losses, x)
    w = torch.tensor([0.0, 1.0], dtype=torch.float64)
    learning_rate = 1 / (2 * float(A[1] @ A[1]))  # the exact step to the minimum of the parabola
    metric = PredictedChange(["line", "parabola"]).set_dtype(torch.float64)
    predicted = -learning_rate * J @ J.T @ w
    metric.update(predicted, losses(x), losses(x - learning_rate * J.T @ w))
    assert_close(metric.compute()["ratio"], torch.tensor([1.0, 0.5], dtype=torch.float64))


def everything() -> MetricCollection:
    names = ["a", "b", "c"]
    return MetricCollection(
        {
            "similarity": SimilarityToMean(),
            "violation": DualConeViolation(),
            "conflict": ConflictRate(),
            "imbalance": NormImbalance(),
            "entropy": WeightEntropy(),
            "distance": StationarityDistance(),
            "cosines": PairwiseCosine(names),
            "weights": TaskWeights(names),
        },
        compute_groups=False,
    )
