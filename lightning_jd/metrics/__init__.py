"""Conflict metrics: each is a function of one step and a torchmetrics ``Metric`` over many.

Metrics of a step take the Gramian of the gradients and, where they need them, the weights. For
methods without weights, pass ``jacobian=`` and ``update=`` instead. Metrics that compare methods
(:func:`delta_m`, :func:`mean_rank`, :func:`hypervolume`) take the task metrics.
"""

import warnings
from typing import TYPE_CHECKING, Any

from lightning_jd.metrics._alignment import Direction
from lightning_jd.metrics._cosines import PairwiseCosine, pairwise_cosines
from lightning_jd.metrics._gradients import (
    ConflictRate,
    NormImbalance,
    StationarityDistance,
    conflict_rate,
    norm_imbalance,
    row_norms,
    stationarity_distance,
)
from lightning_jd.metrics._hypervolume import Hypervolume, hypervolume
from lightning_jd.metrics._noise import (
    GradientNoiseScale,
    NormQuantiles,
    gradient_noise_scale,
    noise_and_signal,
    norm_quantiles,
)
from lightning_jd.metrics._prediction import PredictedChange, predicted_change
from lightning_jd.metrics._streaming import History, StreamingMetric
from lightning_jd.metrics._summary import ConflictSummary, Summary, conflict_summary
from lightning_jd.metrics._tasks import DeltaM, MeanRank, delta_m, mean_rank
from lightning_jd.metrics._updates import (
    DualConeViolation,
    SimilarityToMean,
    Violation,
    dual_cone_violation,
    similarity_to_mean,
)
from lightning_jd.metrics._weights import (
    TaskWeights,
    WeightEntropy,
    largest_weight,
    weight_entropy,
)

__all__ = [
    "ConflictRate",
    "ConflictSummary",
    "DeltaM",
    "Direction",
    "DualConeViolation",
    "GradientNoiseScale",
    "History",
    "Hypervolume",
    "MeanRank",
    "NormImbalance",
    "NormQuantiles",
    "PairwiseCosine",
    "PredictedChange",
    "SimilarityToMean",
    "StationarityDistance",
    "StreamingMetric",
    "Summary",
    "TaskWeights",
    "Violation",
    "WeightEntropy",
    "conflict_rate",
    "conflict_summary",
    "delta_m",
    "dual_cone_violation",
    "gradient_noise_scale",
    "hypervolume",
    "largest_weight",
    "mean_rank",
    "noise_and_signal",
    "norm_imbalance",
    "norm_quantiles",
    "pairwise_cosines",
    "predicted_change",
    "row_norms",
    "similarity_to_mean",
    "stationarity_distance",
    "weight_entropy",
]


def _old_name(name: str) -> Any:
    """The name of 0.2 for :func:`row_norms`, until 0.4."""
    if name != "gradient_norms":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        "`metrics.gradient_norms(gramian)` is called `metrics.row_norms(gramian)` since 0.3, and "
        "is removed in 0.4. (`lightning_jd.gradient_norms` takes losses and a model.)",
        FutureWarning,
        stacklevel=2,
    )
    return row_norms


if not TYPE_CHECKING:  # a checker would accept every name
    __getattr__ = _old_name
