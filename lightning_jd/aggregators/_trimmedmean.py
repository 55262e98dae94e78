"""TrimmedMean: per coordinate, the mean without the extremes."""

from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._arguments import checked_integer
from lightning_jd.aggregators._base import Aggregator, Property
from lightning_jd.aggregators._registry import register
from lightning_jd.errors import ShapeError
from lightning_jd.linalg import check_finite


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

    properties: ClassVar[frozenset[Property]] = frozenset({Property.PERMUTATION_INVARIANT})

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
