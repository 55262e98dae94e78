"""Base of the metrics: means over all updates, and a history of fixed size to draw."""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torchmetrics import Metric
from typing_extensions import override

from lightning_jd.errors import ArgumentError
from lightning_jd.metrics._plot import Axes, Curve, Figure, curve_of, draw_curves


class Reported(Protocol):
    """What metrics read of a :class:`~lightning_jd.core.Report`."""

    @property
    def gramian(self) -> Tensor:
        """G, shape (m, m)."""

    @property
    def weights(self) -> Tensor:
        """w, shape (m,)."""

    @property
    def known_weights(self) -> Tensor | None:
        """The weights, or ``None``."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the objectives."""


_T = TypeVar("_T", Tensor, Tensor | None)


def read(gramian: _T | Reported, weights: Tensor | None = None) -> tuple[_T, Tensor | None]:
    """Gramian and weights of an update; a report has both."""
    if gramian is None or isinstance(gramian, Tensor):
        return gramian, weights
    return gramian.gramian, gramian.known_weights if weights is None else weights


_BINS = 256


class History(NamedTuple):
    """Mean and standard deviation of k values over bins of consecutive updates.

    Attributes:
        updates: The index of the update in the middle of each bin, (t,).
        mean: (t, k), NaN if nothing was recorded.
        deviation: (t, k), over the updates and processes of a bin.
    """

    updates: Tensor
    mean: Tensor
    deviation: Tensor


class StreamingMetric(Metric):
    """Base class: the running mean of named values over all updates and processes.

    The history has at most 256 bins. When they are full, neighbouring bins are merged, so each
    covers twice as many updates. Memory is constant, and every state is a sum. All processes must
    make the same number of updates (up to the width of a bin), as under DDP.

    Subclasses call :meth:`record` from ``update``. Every metric accepts a Gramian and weights,
    ``update(G, w)``, or the report of a step, and uses what it needs, so all of them work in one
    ``torchmetrics.MetricCollection``. Before the first update the result is NaN.

    Args:
        labels: The names of the values.
        kwargs: For :class:`torchmetrics.Metric`.
    """

    is_differentiable = False
    # Where an update is recorded depends on how many there were: `forward` must see the full state.
    full_state_update = True
    title: ClassVar[str] = ""
    ylabel: ClassVar[str] = ""
    limits: ClassVar[tuple[float, float] | None] = None
    total: Tensor
    squares: Tensor
    count: Tensor
    width: Tensor

    def __init__(self, labels: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.labels = tuple(labels)
        for state in ("total", "squares", "count"):
            self.add_state(state, torch.zeros(_BINS, len(self.labels)), dist_reduce_fx="sum")
        self.add_state("width", torch.tensor(1), dist_reduce_fx=_equal_widths)

    def record(self, values: Tensor, weight: Tensor | float = 1.0) -> None:
        """Add the values (k,) of one update; ``weight`` is a scalar or has shape (k,)."""
        position, width = self.update_count - 1, 1
        while position >= _BINS * width:
            width *= 2
        if width > 1 and position == _BINS * width // 2:  # full: just now
            for state in ("total", "squares", "count"):
                setattr(self, state, _merge_neighbours(getattr(self, state)))
            self.width = self.width * 2
        row = position // width
        weighted = values * weight
        self.total[row] += weighted
        self.squares[row] += weighted * values
        self.count[row] += weight

    def mean(self) -> Tensor:
        """The mean of each value (k,); NaN if nothing was recorded."""
        count = self.count.sum(dim=0)
        return self.total.sum(dim=0) / torch.where(count > 0, count, torch.nan)

    def history(self) -> History:
        """The values over the updates of this process."""
        rows = int(self.count.sum(dim=1).nonzero().max()) + 1 if bool(self.count.any()) else 0
        count = self.count[:rows]
        count = torch.where(count > 0, count, torch.nan)
        mean = self.total[:rows] / count
        variance = (self.squares[:rows] / count - mean.square()).clamp(min=0)
        updates = (torch.arange(rows, device=mean.device) + 0.5) * self.width
        return History(updates, mean, variance.sqrt())

    @override
    def compute(self) -> Tensor:
        """The mean over all updates; a scalar if there is one value."""
        mean = self.mean()
        return mean[0] if len(self.labels) == 1 else mean

    @override
    def plot(
        self, val: Tensor | Sequence[Tensor] | None = None, ax: Axes | None = None
    ) -> tuple[Figure, Axes]:
        """Plot the history: the mean of each bin with a band of one standard deviation.

        Args:
            val: Results to plot instead, for example one per epoch.
            ax: The axes to draw on; a new figure by default.

        Raises:
            MissingDependencyError: If matplotlib is not installed.
        """
        curves = self.curves()
        if isinstance(val, Sequence) and len(self.labels) == 1:
            curves = [curve_of(self.labels[0], [float(value) for value in val])]
        return draw_curves(curves, ax=ax, title=self.title, ylabel=self.ylabel, limits=self.limits)

    def curves(self) -> list[Curve]:
        """One curve per value, for plotting."""
        updates, mean, deviation = (part.tolist() for part in self.history())
        columns = zip(zip(*mean, strict=True), zip(*deviation, strict=True), strict=True)
        return [
            Curve(label, updates, list(middle), list(spread))
            for label, (middle, spread) in zip(self.labels, columns, strict=False)
        ]

    @override
    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        # A history that comes from a checkpoint is continued behind its last stretch.
        rows = self.count.sum(dim=1).nonzero()
        if self._update_count == 0 and len(rows):
            self._update_count = (int(rows.max()) + 1) * int(self.width)


def _merge_neighbours(state: Tensor) -> Tensor:
    halves = state.view(_BINS // 2, 2, -1).sum(dim=1)
    return torch.cat([halves, torch.zeros_like(halves)])


def _equal_widths(widths: Tensor) -> Tensor:
    if bool((widths != widths[0]).any()):
        raise ArgumentError(
            "All processes must make about equally many updates, got bins of "
            f"{widths.flatten().tolist()} updates. Reset the metric at the same step on all "
            "processes."
        )
    return widths[0]
