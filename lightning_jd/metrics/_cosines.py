"""Which objectives disagree with which? The matrix of cosines, and its mean over training."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from typing_extensions import override

from lightning_jd.metrics._names import check_names, positions
from lightning_jd.metrics._plot import Axes, Figure, draw_heat_map
from lightning_jd.metrics._streaming import Reported
from lightning_jd.metrics._unit import unit_gramian


def pairwise_cosines(gramian: Tensor) -> Tensor:
    r"""Cosines between the gradients, :math:`C_{ij} = G_{ij} / \sqrt{G_{ii} G_{jj}}`.

    Args:
        gramian: :math:`G`, shape ``(m, m)``.

    Returns:
        Shape ``(m, m)``, in [-1, 1]; the row and column of a zero gradient are 0.

    Example:
        >>> pairwise_cosines(torch.tensor([[4.0, -1.0], [-1.0, 1.0]]))
        tensor([[ 1.0000, -0.5000],
                [-0.5000,  1.0000]])
    """
    return unit_gramian(gramian)[0].clamp(-1, 1)


class PairwiseCosine(Metric):
    """Mean of :func:`pairwise_cosines` over all updates of all processes, for named objectives.

    Args:
        names: The objectives. An update may cover a part of them.
        kwargs: For :class:`torchmetrics.Metric`.

    Raises:
        ArgumentError: If ``names`` is empty or has duplicates.

    Example:
        >>> metric = PairwiseCosine(["depth", "normals", "labels"])
        >>> metric.update(torch.tensor([[4.0, -1.0], [-1.0, 1.0]]), names=["labels", "depth"])
        >>> metric.compute()
        tensor([[ 1.0000,     nan, -0.5000],
                [    nan,     nan,     nan],
                [-0.5000,     nan,  1.0000]])
    """

    is_differentiable = False
    higher_is_better = None
    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self, names: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.names = check_names(names)
        m = len(self.names)
        self.add_state("total", torch.zeros(m, m), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros(m, m), dist_reduce_fx="sum")

    @override
    def update(
        self, gramian: Tensor | Reported, names: Sequence[str] | Tensor | None = None
    ) -> None:
        """Add the Gramian of one update.

        Args:
            gramian: Shape ``(m, m)``, or a report.
            names: The objectives of the rows; all of them in order by default. In a
                ``MetricCollection`` this position receives the weights, which are ignored.

        Raises:
            UnknownNameError: If the metric does not have this name.
            ShapeError: If the number of names differs from the number of rows.
        """
        if not isinstance(gramian, Tensor):
            names, gramian = gramian.names, gramian.gramian
        C = pairwise_cosines(gramian)
        names = None if isinstance(names, Tensor) else names
        where = torch.tensor(positions(names, self.names, len(C)), device=C.device)
        cell = (where[:, None], where[None, :])
        self.total.index_put_(cell, C.to(self.total), accumulate=True)
        self.count.index_put_(cell, torch.ones_like(C).to(self.count), accumulate=True)

    def extended(self, names: Sequence[str]) -> "PairwiseCosine":
        """A copy of this metric, with its state, that also has these names."""
        everybody = dict.fromkeys([*self.names, *names])
        wider = PairwiseCosine(tuple(everybody), sync_on_compute=self.sync_on_compute)
        wider.to(self.device)
        m = len(self.names)
        wider.total[:m, :m] = self.total
        wider.count[:m, :m] = self.count
        wider._update_count = self.update_count
        return wider

    @override
    def compute(self) -> Tensor:
        """The mean cosines (m, m); NaN for two objectives that never occurred together."""
        return self.total / self.count

    @override
    def plot(self, val: Tensor | None = None, ax: Axes | None = None) -> tuple[Figure, Axes]:
        """Plot the cosines as a heat map.

        Args:
            val: The result to plot; that of :meth:`compute` by default.
            ax: The axes to draw on; a new figure by default.

        Raises:
            MissingDependencyError: If matplotlib is not installed.
        """
        matrix = (self.compute() if val is None else val).tolist()
        return draw_heat_map(matrix, self.names, ax=ax, title="Cosines between the gradients")
