"""How far is the update from the mean of the gradients? The function and the metric."""

from typing import Any, ClassVar

from torch import Tensor
from typing_extensions import override

from lightning_jd.metrics._alignment import alignment
from lightning_jd.metrics._reported import Reported, read
from lightning_jd.metrics._streaming import StreamingMetric


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
