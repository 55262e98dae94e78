"""The angles between the gradients and an update: similarity to the mean, and harm."""

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.metrics._alignment import alignment
from lightning_jd.metrics._streaming import Reported, StreamingMetric, read
from lightning_jd.metrics._unit import TOLERANCE, check_tolerance, share_below


def similarity_to_mean(
    gramian: Tensor | None = None,
    weights: Tensor | None = None,
    *,
    jacobian: Tensor | None = None,
    update: Tensor | None = None,
) -> Tensor:
    r"""Cosine between the update :math:`d` and the mean of the gradients.

    .. math::
        \frac{\langle d, d_0 \rangle}{\lVert d \rVert \lVert d_0 \rVert}, \qquad
        d = J^\top w, \quad d_0 = J^\top (\tfrac 1m, \dots, \tfrac 1m),

    where the rows of :math:`J` are the gradients of the m objectives. It is 1 for the mean itself.
    A low value means that the method changes the update, because of conflict or imbalanced norms.

    Args:
        gramian: :math:`G = J J^\top`, shape ``(m, m)``.
        weights: :math:`w`, shape ``(m,)``.
        jacobian: :math:`J`, shape ``(m, n)``: for methods without weights, together with
            ``update``.
        update: :math:`d`, shape ``(n,)``.

    Returns:
        A number in [-1, 1]; 0 if one of the two updates is zero.

    Raises:
        ArgumentError: If neither pair of arguments is complete.

    Example:
        >>> import torch
        >>> G = torch.tensor([[1.0, 0.0], [0.0, 1.0]])  # orthogonal, equal norms
        >>> round(float(similarity_to_mean(G, torch.tensor([0.5, 0.5]))), 4)
        1.0
        >>> similarity_to_mean(G, torch.tensor([1.0, 0.0]))  # an angle of 45 degrees
        tensor(0.7071)
        >>> J = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
        >>> similarity_to_mean(jacobian=J, update=torch.tensor([3.0, 0.0]))
        tensor(0.7071)
    """
    return alignment(gramian, weights, jacobian, update).similarity


class SimilarityToMean(StreamingMetric):
    """Mean of :func:`similarity_to_mean` over all updates of all processes.

    Args:
        kwargs: For :class:`torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = SimilarityToMean()
        >>> metric.update(torch.eye(2), torch.tensor([1.0, 0.0]))
        >>> metric.update(torch.eye(2), torch.tensor([1.0, 1.0]))
        >>> metric.compute()
        tensor(0.8536)
    """

    higher_is_better = None
    title: ClassVar[str] = "Similarity to the mean update"
    ylabel: ClassVar[str] = "cosine"
    limits: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(["similarity to mean"], **kwargs)

    @override
    def update(
        self,
        gramian: Tensor | Reported | None = None,
        weights: Tensor | None = None,
        *,
        jacobian: Tensor | None = None,
        update: Tensor | None = None,
    ) -> None:
        """Add one update: the arguments of :func:`similarity_to_mean`, or a report."""
        G, w = read(gramian, weights)
        value = similarity_to_mean(G, w, jacobian=jacobian, update=update)
        self.record(value.reshape(1))


class Violation(NamedTuple):
    """How far an update, and the mean of the gradients, lie outside the dual cone.

    Attributes:
        share: Fraction of the objectives that conflict with the update, in [0, 1].
        worst_cosine: Smallest cosine between a gradient and the update, in [-1, 1].
        mean_share: ``share`` for the mean of the gradients as the update.
        mean_worst_cosine: ``worst_cosine`` for the mean of the gradients.
    """

    share: Tensor
    worst_cosine: Tensor
    mean_share: Tensor
    mean_worst_cosine: Tensor


def dual_cone_violation(
    gramian: Tensor | None = None,
    weights: Tensor | None = None,
    *,
    jacobian: Tensor | None = None,
    update: Tensor | None = None,
    tolerance: float = TOLERANCE,
) -> Violation:
    r"""Objectives that get worse, to first order, with the update :math:`d = J^\top w`.

    Objective :math:`i` conflicts with :math:`d` if :math:`\cos(g_i, d) < -\text{tolerance}`, where
    :math:`g_i` is its gradient and :math:`\langle g_i, d \rangle = (G w)_i`. An update in the dual
    cone :math:`\{d : J d \succeq 0\}` conflicts with no objective. Zero gradients and zero updates
    have cosine 0 and do not conflict.

    Args:
        gramian: :math:`G = J J^\top`, shape ``(m, m)``.
        weights: :math:`w`, shape ``(m,)``.
        jacobian: :math:`J`, shape ``(m, n)``: for methods without weights, together with
            ``update``.
        update: :math:`d`, shape ``(n,)``.
        tolerance: Cosines above ``-tolerance`` do not count as conflict; the default is just above
            the rounding error of float32.

    Raises:
        ArgumentError: If neither pair of arguments is complete.

    Example:
        For two opposed gradients, the mean harms the shorter one:

        >>> G = torch.tensor([[9.0, -3.0], [-3.0, 1.0]])
        >>> share, worst, *_ = dual_cone_violation(G, torch.tensor([0.5, 0.5]))
        >>> print(f"{share:.1f} {worst:.1f}")
        0.5 -1.0
    """
    check_tolerance(tolerance)
    cosines = alignment(gramian, weights, jacobian, update).cosines
    share, mean_share = share_below(cosines, tolerance)
    worst, mean_worst = cosines.amin(dim=1)
    return Violation(share, worst, mean_share, mean_worst)


class DualConeViolation(StreamingMetric):
    """Running :func:`dual_cone_violation`: mean fractions and minimum cosines over all updates.

    Args:
        tolerance: See :func:`dual_cone_violation`.
        kwargs: For :class:`torchmetrics.Metric`.

    Example:
        >>> metric = DualConeViolation()
        >>> metric.update(torch.tensor([[9.0, -3.0], [-3.0, 1.0]]), torch.tensor([1.0, 1.0]))
        >>> metric.update(torch.eye(2), torch.tensor([1.0, 1.0]))
        >>> for name, value in metric.compute().items():
        ...     print(f"{name} {value:.2f}")
        violation_share 0.25
        violation_worst_cosine -1.00
        mean_violation_share 0.25
        mean_violation_worst_cosine -1.00
    """

    higher_is_better = False
    worst: Tensor
    title: ClassVar[str] = "Objectives that the update harms"
    ylabel: ClassVar[str] = "share of the objectives"
    limits: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __init__(self, tolerance: float = TOLERANCE, **kwargs: Any) -> None:
        super().__init__(["this update", "the mean"], **kwargs)
        check_tolerance(tolerance)
        self.tolerance = tolerance
        self.add_state("worst", torch.ones(2), dist_reduce_fx="min")

    @override
    def update(
        self,
        gramian: Tensor | Reported | None = None,
        weights: Tensor | None = None,
        *,
        jacobian: Tensor | None = None,
        update: Tensor | None = None,
    ) -> None:
        """Add one update: the arguments of :func:`dual_cone_violation`, or a report."""
        G, w = read(gramian, weights)
        found = dual_cone_violation(
            G, w, jacobian=jacobian, update=update, tolerance=self.tolerance
        )
        self.record(torch.stack([found.share, found.mean_share]))
        worst = torch.stack([found.worst_cosine, found.mean_worst_cosine])
        self.worst = torch.minimum(self.worst, worst.to(self.worst))

    @override
    def compute(self) -> dict[str, Tensor]:  # type: ignore[override]  # a metric of four numbers
        """The fields of :class:`Violation`, under their logged names."""
        share, mean_share = self.mean()
        # Of nothing, the least cosine is not 1.
        worst, mean_worst = torch.where(share.isnan(), torch.nan, self.worst)
        return {
            "violation_share": share,
            "violation_worst_cosine": worst,
            "mean_violation_share": mean_share,
            "mean_violation_worst_cosine": mean_worst,
        }
