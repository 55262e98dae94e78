"""All scalars of one step at once: few small operations, and no wait for the device."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.metrics._alignment import Direction, alignment, of_direction, of_unit
from lightning_jd.metrics._gradients import log_deviation, rate_of_cosines
from lightning_jd.metrics._gradients import of_unit as distance_of_unit
from lightning_jd.metrics._names import positions
from lightning_jd.metrics._plot import Figure, draw_curves, new_grid
from lightning_jd.metrics._streaming import Reported, StreamingMetric, read
from lightning_jd.metrics._unit import TOLERANCE, check_tolerance, share_below, unit_gramian
from lightning_jd.metrics._weights import largest_weight, weight_entropy

_OF_UPDATE = ("similarity_to_mean", "violation_share", "violation_worst_cosine")
_OF_GRADIENTS = (
    "mean_violation_share",
    "mean_violation_worst_cosine",
    "conflict_rate",
    "norm_imbalance",
)
_OF_WEIGHTS = ("weight_entropy", "largest_weight")


class Summary(NamedTuple):
    """Named scalars that are still on the device.

    Attributes:
        names: One per scalar.
        values: The scalars, shape ``(k,)``.
    """

    names: tuple[str, ...]
    values: Tensor

    def to_dict(self) -> dict[str, float]:
        """The values by name, with one copy from the device."""
        return dict(zip(self.names, self.values.tolist(), strict=True))


def conflict_summary(
    gramian: Tensor,
    weights: Tensor | None = None,
    *,
    jacobian: Tensor | None = None,
    update: Tensor | Direction | None = None,
    stationarity: bool = False,
    tolerance: float = TOLERANCE,
) -> Summary:
    r"""Every scalar metric of one step, computed together.

    =============================== ===========================================================
    ``similarity_to_mean``          :func:`similarity_to_mean`
    ``violation_share``             :func:`dual_cone_violation`, ``share``
    ``violation_worst_cosine``      the same, ``worst_cosine``
    ``mean_violation_share``        the same, had the mean been the update
    ``mean_violation_worst_cosine`` the same
    ``conflict_rate``               :func:`conflict_rate`
    ``norm_imbalance``              :func:`norm_imbalance`
    ``weight_entropy``              :func:`weight_entropy`
    ``largest_weight``              :func:`largest_weight`
    ``stationarity_distance``       :func:`stationarity_distance`, on request
    =============================== ===========================================================

    Metrics whose inputs are missing are omitted. Pass ``jacobian`` and ``update`` for a method
    without weights, or neither for the metrics of the gradients alone.

    Args:
        gramian: :math:`G = J J^\top`, shape ``(m, m)``.
        weights: :math:`w`, shape ``(m,)``.
        jacobian: :math:`J`, shape ``(m, n)``.
        update: :math:`d`, shape ``(n,)``; or a :class:`Direction`, which does not require the
            Jacobian.
        stationarity: Whether to add the distance to stationarity, which solves a small quadratic
            program on the host.
        tolerance: See :func:`dual_cone_violation`.

    Example:
        >>> G = torch.tensor([[9.0, -3.0], [-3.0, 1.0]])
        >>> found = conflict_summary(G, torch.tensor([0.5, 0.5])).to_dict()
        >>> round(found["violation_share"], 3), round(found["norm_imbalance"], 3)
        (0.5, 1.732)
    """
    check_tolerance(tolerance)
    C, norms = unit_gramian(gramian)
    eps = torch.finfo(gramian.dtype).eps
    if isinstance(update, Direction):
        angles = of_direction(C, norms, update)
    elif weights is None and (jacobian is not None or update is not None):
        angles = alignment(None, None, jacobian, update)
    else:
        used = torch.ones_like(norms) if weights is None else weights
        angles = of_unit(C, norms, used, eps=eps)
    share, mean_share = share_below(angles.cosines, tolerance).unbind()
    worst, mean_worst = angles.cosines.amin(dim=1).unbind()
    names: list[str] = []
    values: list[Tensor] = []
    if weights is not None or update is not None:
        names += _OF_UPDATE
        values += [angles.similarity, share, worst]
    names += _OF_GRADIENTS
    rate = rate_of_cosines(C, tolerance)
    values += [mean_share, mean_worst, rate, log_deviation(norms).exp()]
    if weights is not None:
        names += _OF_WEIGHTS
        values += [weight_entropy(weights).to(C), largest_weight(weights).to(C)]
    if stationarity:
        names.append("stationarity_distance")
        values.append(distance_of_unit(C, norms, eps=eps))
    return Summary(tuple(names), torch.stack(values))


class ConflictSummary(StreamingMetric):
    """Means of :func:`conflict_summary` over all updates of all processes, and their histories.

    Args:
        stationarity: Whether to compute the distance to stationarity, which solves a small
            quadratic program on the host in each update.
        tolerance: See :func:`dual_cone_violation`.
        kwargs: For :class:`torchmetrics.Metric`.

    Example:
        >>> metric = ConflictSummary()
        >>> metric.update(torch.eye(2), torch.tensor([1.0, 1.0]))
        >>> float(metric.compute()["weight_entropy"])
        1.0
    """

    higher_is_better = None

    def __init__(
        self, *, stationarity: bool = False, tolerance: float = TOLERANCE, **kwargs: Any
    ) -> None:
        last = ("stationarity_distance",) if stationarity else ()
        super().__init__((*_OF_UPDATE, *_OF_GRADIENTS, *_OF_WEIGHTS, *last), **kwargs)
        check_tolerance(tolerance)
        self.stationarity = stationarity
        self.tolerance = tolerance

    @override
    def update(
        self,
        gramian: Tensor | Reported,
        weights: Tensor | None = None,
        *,
        jacobian: Tensor | None = None,
        update: Tensor | Direction | None = None,
    ) -> None:
        """Add one update: the arguments of :func:`conflict_summary`, or a report."""
        G, w = read(gramian, weights)
        found = conflict_summary(
            G,
            w,
            jacobian=jacobian,
            update=update,
            stationarity=self.stationarity,
            tolerance=self.tolerance,
        )
        if found.names == self.labels:
            self.record(found.values)
            return
        where = positions(found.names, self.labels, len(found.names))
        known = self.total.new_zeros(len(self.labels))
        values = torch.zeros_like(known)
        known[where] = 1.0
        values[where] = found.values.to(values)
        self.record(values, weight=known)

    @override
    def compute(self) -> dict[str, Tensor]:  # type: ignore[override]  # a metric of many numbers
        """The mean of each metric by name; NaN if it was never recorded."""
        return dict(zip(self.labels, self.mean(), strict=True))

    @override
    def plot(self, val: Any = None, ax: Any = None) -> tuple[Figure, Any]:
        """Plot the histories, one panel per metric.

        Args:
            val: Ignored; torchmetrics passes the result of :meth:`compute`.
            ax: Six axes to draw on; a new figure by default.

        Raises:
            MissingDependencyError: If matplotlib is not installed.
        """
        figure, axes = new_grid(2, 3) if ax is None else (ax[0].get_figure(), ax)
        curves = {curve.label: curve for curve in self.curves()}
        for panel, (title, ylabel, content, limits) in zip(axes, _PANELS, strict=True):
            lines = [
                curves[name]._replace(label=label) for label, name in content if name in curves
            ]
            draw_curves(lines, ax=panel, title=title, ylabel=ylabel, limits=limits)
        return figure, axes


_Panel = tuple[str, str, tuple[tuple[str, str], ...], tuple[float, float] | None]
_PANELS: tuple[_Panel, ...] = (
    ("Similarity to the mean update", "cosine", (("", "similarity_to_mean"),), (0, 1)),
    (
        "Objectives harmed",
        "share",
        (("this update", "violation_share"), ("the mean", "mean_violation_share")),
        (0, 1),
    ),
    (
        "Worst angle with a gradient",
        "cosine",
        (("this update", "violation_worst_cosine"), ("the mean", "mean_violation_worst_cosine")),
        (-1, 1),
    ),
    ("Pairs in conflict", "share", (("", "conflict_rate"),), (0, 1)),
    ("Imbalance of the gradient norms", "factor", (("", "norm_imbalance"),), None),
    ("Evenness of the weights", "entropy / log m", (("", "weight_entropy"),), (0, 1)),
)
