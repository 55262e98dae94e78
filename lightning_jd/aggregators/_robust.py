"""Aggregators for rows of which some may be faulty or hostile."""

from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import checked_integer, positive
from lightning_jd.aggregators._base import Aggregator, GramianAggregator, Property, check_gramian
from lightning_jd.aggregators._precision import in_float64, relative_tolerance
from lightning_jd.aggregators._registry import register
from lightning_jd.errors import ArgumentError, ShapeError
from lightning_jd.linalg import check_finite


@register
class Clip(GramianAggregator):
    r"""The mean (or sum) of the rows after each one is clipped to a largest norm.

    .. math::
        \mathcal A(J) = \frac1m J^\top w, \qquad w_i = \min(1, C / \lVert g_i \rVert)

    It bounds the influence of a single example. A step needs the norms of the gradients only, so
    that no other entry of the Gramian is computed for rows of instances, and the report has no
    Gramian. It is the first step of differentially private training and not more: there is no
    noise, no Poisson sampling and no accounting, hence no privacy.

    Args:
        norm: C, the largest norm of a row.
        reduction: ``"mean"`` or ``"sum"``; the sum is not divided by m.

    Raises:
        ArgumentError: If ``norm`` is not a positive, finite number, or ``reduction`` is neither.

    Example:
        >>> import torch
        >>> Clip(norm=1.0)(torch.tensor([[3.0, 4.0], [0.0, 0.5]]))
        tensor([0.3000, 0.6500])

    References:
        Abadi et al., *Deep Learning with Differential Privacy*, CCS 2016.
    """

    properties = frozenset({Property.WEIGHTED, Property.PERMUTATION_INVARIANT})
    only_norms = True

    def __init__(self, norm: float, reduction: Literal["mean", "sum"] = "mean") -> None:
        super().__init__()
        self.norm = positive("norm", norm)
        if reduction not in ("mean", "sum"):
            raise ArgumentError(f"`reduction` must be 'mean' or 'sum', got {reduction!r}.")
        self.reduction = reduction

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        check_gramian(gramian)
        norms = gramian.diagonal().clamp(min=0).sqrt()
        weights = torch.where(norms > self.norm, self.norm / norms, 1.0)
        return weights / len(weights) if self.reduction == "mean" else weights


@register
class Krum(GramianAggregator):
    r"""Krum and multi-Krum: the mean of the rows that are closest to their neighbours.

    With up to :math:`f` arbitrary rows, the score of a row is the sum of its squared distances to
    its :math:`k = m - f - 2` nearest other rows,

    .. math::
        s_i = \sum_{j \in N_k(i)} \lVert g_i - g_j \rVert^2, \qquad
        \lVert g_i - g_j \rVert^2 = G_{ii} + G_{jj} - 2 G_{ij},

    and the result is the mean of the ``n_selected`` rows with the smallest scores. It is designed
    for rows that estimate the same gradient, such as one row per process, when some may be faulty
    or adversarial.

    Rows with equal scores (such as two mutual nearest neighbours with k = 1) share the remaining
    places, so the order of the rows does not matter.

    Args:
        n_byzantine: :math:`f`, the number of rows that may be arbitrary. Krum requires at least
            :math:`2 f + 3` rows; with f = 0, any number.
        n_selected: The number of rows to average: 1 is Krum, more is multi-Krum; at most
            :math:`m - f`.

    Raises:
        ArgumentError: If an argument is not an integer, or too small.
        ShapeError: When called, if there are too few rows for the arguments.

    Example:
        >>> J = torch.tensor([[1.0, 0.0], [1.2, 0.0], [1.0, 0.1], [1.1, 0.2], [-99.0, 99.0]])
        >>> Krum(n_byzantine=1)(J)
        tensor([1.0000, 0.1000])
        >>> Krum(n_byzantine=1, n_selected=4)(J)
        tensor([1.0750, 0.0750])

    References:
        Blanchard, El Mhamdi, Guerraoui and Stainer, *Machine Learning with Adversaries: Byzantine
        Tolerant Gradient Descent*, NeurIPS 2017.
    """

    properties = frozenset({Property.WEIGHTED, Property.PERMUTATION_INVARIANT})

    def __init__(self, n_byzantine: int, n_selected: int = 1) -> None:
        super().__init__()
        self.n_byzantine = checked_integer("n_byzantine", n_byzantine, least=0)
        self.n_selected = checked_integer("n_selected", n_selected, least=1)

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        check_gramian(gramian)
        self._check_rows(len(gramian))
        scores, rounding = self._scores(gramian)
        last = scores.kthvalue(self.n_selected).values
        tied = (scores - last).abs() <= rounding
        better = (scores < last) & ~tied
        places = self.n_selected - better.sum()  # for those that are tied
        return (torch.where(tied, places / tied.sum(), better.double()) / self.n_selected).to(
            gramian
        )

    def _scores(self, gramian: Tensor) -> tuple[Tensor, Tensor]:
        """The scores (m,), and how far rounding of the Gramian may have moved each of them."""
        G, m = in_float64(gramian), len(gramian)
        squared_norms = G.diagonal()
        sizes = squared_norms[:, None] + squared_norms  # what the differences are taken of
        distances = (sizes - G - G.T).clamp(min=0).fill_diagonal_(torch.inf)
        # Below three rows there is nothing to compare: all that there are count as near.
        neighbours = max(m - self.n_byzantine - 2, min(m - 1, 1))
        near = distances.topk(neighbours, largest=False)
        rounding = relative_tolerance(m, gramian.dtype) * sizes.gather(1, near.indices).sum(dim=1)
        return near.values.sum(dim=1), rounding

    def _check_rows(self, m: int) -> None:
        if self.n_byzantine and m < 2 * self.n_byzantine + 3:
            raise ShapeError(
                f"Krum with n_byzantine={self.n_byzantine} requires at least 2 * "
                f"{self.n_byzantine} + 3 = {2 * self.n_byzantine + 3} rows, got {m}. With fewer "
                "rows it is not robust: lower `n_byzantine`, or use more rows."
            )
        if m < self.n_byzantine + self.n_selected:
            raise ShapeError(
                f"Krum must select at most the {m - self.n_byzantine} rows that are not arbitrary "
                f"({m} rows, n_byzantine={self.n_byzantine}), got n_selected={self.n_selected}."
            )


@register
class TrimmedMean(Aggregator):
    r"""For each coordinate, the mean of the entries without the largest and the smallest.

    With :math:`J_{(1)j} \le \dots \le J_{(m)j}` the entries of column :math:`j` in order and
    :math:`b` = ``trim``,

    .. math::
        \mathcal A(J)_j = \frac{1}{m - 2 b} \sum_{i = b + 1}^{m - b} J_{(i)j} .

    Each entry of the result lies between entries of the m - b other rows, whatever any b rows are.
    The largest possible b gives the median. It is designed for rows that estimate the same
    gradient, such as one row per process, when some may be faulty or adversarial. The update is not
    a weighted sum of the rows, so it requires the Jacobian.

    Args:
        trim: :math:`b`, the number of entries to drop at each end. There must be at least
            :math:`2 b + 1` rows.

    Raises:
        ArgumentError: If ``trim`` is not an integer, or negative.
        ShapeError: When called, if there are fewer than :math:`2 b + 1` rows.

    Example:
        >>> import torch
        >>> TrimmedMean(trim=1)(torch.tensor([[1.0, 2.0], [-99.0, 4.0], [2.0, 3.0], [3.0, 99.0]]))
        tensor([1.5000, 3.5000])

    References:
        Yin, Chen, Ramchandran and Bartlett, *Byzantine-Robust Distributed Learning: Towards Optimal
        Statistical Rates*, ICML 2018.
    """

    properties = frozenset({Property.PERMUTATION_INVARIANT})

    def __init__(self, trim: int) -> None:
        super().__init__()
        self.trim = checked_integer("trim", trim, least=0)

    @override
    def aggregate(self, jacobian: Tensor) -> Tensor:
        check_finite("jacobian", jacobian)
        m = len(jacobian)
        if m <= 2 * self.trim:
            raise ShapeError(
                f"TrimmedMean with trim={self.trim} must have at least {2 * self.trim + 1} rows, "
                f"got {m}. Lower `trim`, or use more rows."
            )
        return jacobian.sort(dim=0).values[self.trim : m - self.trim].mean(dim=0)
