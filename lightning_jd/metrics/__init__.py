"""Conflict metrics: each is a function of one step and a torchmetrics ``Metric`` over many.

Metrics of a step take the Gramian of the gradients and, where they need them, the weights. For
methods without weights, pass ``jacobian=`` and ``update=`` instead. Metrics that compare methods
(:func:`delta_m`, :func:`mean_rank`, :func:`hypervolume`) take the task metrics.
"""

from lightning_jd.metrics._alignment import Direction
from lightning_jd.metrics._cosines import PairwiseCosine, pairwise_cosines
from lightning_jd.metrics._gradients import (
    ConflictRate,
    NormImbalance,
    StationarityDistance,
    conflict_rate,
    gradient_norms,
    norm_imbalance,
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
    "gradient_norms",
    "hypervolume",
    "largest_weight",
    "mean_rank",
    "noise_and_signal",
    "norm_imbalance",
    "norm_quantiles",
    "pairwise_cosines",
    "predicted_change",
    "similarity_to_mean",
    "stationarity_distance",
    "weight_entropy",
]
