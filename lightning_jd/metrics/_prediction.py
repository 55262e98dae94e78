"""Does a step do what its linear model promises? Predicted against realised change of each loss."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from typing_extensions import override

from lightning_jd.errors import ArgumentError, ShapeError
from lightning_jd.linalg import check_matrix, check_square
from lightning_jd.metrics._names import check_names, positions
from lightning_jd.metrics._plot import Axes, Figure, draw_pairs
from lightning_jd.metrics._unit import check_weights, single_or_double


def predicted_change(
    gramian: Tensor | None = None,
    weights: Tensor | None = None,
    *,
    learning_rate: float,
    jacobian: Tensor | None = None,
    update: Tensor | None = None,
) -> Tensor:
    r"""First-order change of each loss in one plain SGD step along :math:`-d = -J^\top w`.

    .. math:: f(x - \eta d) - f(x) \approx -\eta J d = -\eta G w .

    Args:
        gramian: :math:`G = J J^\top`, shape ``(m, m)``.
        weights: :math:`w`, shape ``(m,)``.
        learning_rate: :math:`\eta`.
        jacobian: :math:`J`, shape ``(m, n)``: for methods without weights, together with
            ``update``.
        update: :math:`d`, shape ``(n,)``.

    Returns:
        Shape ``(m,)``; negative entries predict an improvement.

    Raises:
        ArgumentError: If neither pair of arguments is complete.

    Example:
        >>> G = torch.tensor([[9.0, -3.0], [-3.0, 1.0]])
        >>> predicted_change(G, torch.tensor([0.5, 0.5]), learning_rate=0.1)
        tensor([-0.3000,  0.1000])
    """
    if jacobian is not None and update is not None:
        check_matrix("jacobian", jacobian)
        matrix, vector = jacobian, update
    elif gramian is not None and weights is not None:
        check_square("gramian", gramian)
        check_weights(weights, len(gramian))
        matrix, vector = gramian, weights
    else:
        raise ArgumentError(
            "A step must be given as `gramian` and `weights`, or as `jacobian` and `update`, "
            "got no complete pair."
        )
    matrix = single_or_double(matrix)
    return -learning_rate * (matrix @ vector.detach().to(matrix))


class PredictedChange(Metric):
    """Mean predicted and realised change of each named loss, over all updates of all processes.

    A ratio of 1 means that the linear model of :func:`predicted_change` holds. Between 0 and 1,
    curvature cancels a part of the predicted change: the learning rate is high. Below 0, the loss
    rises where it should fall. Both losses must come from the same data; otherwise the difference
    also contains the change of the data.

    Args:
        names: The objectives.
        kwargs: For :class:`torchmetrics.Metric`.

    Raises:
        ArgumentError: If ``names`` is empty or has duplicates.

    Example:
        >>> metric = PredictedChange(["depth", "normals"])
        >>> before, after = torch.tensor([1.0, 2.0]), torch.tensor([0.75, 2.05])
        >>> metric.update(torch.tensor([-0.3, 0.1]), before, after)
        >>> metric.compute()["ratio"]
        tensor([0.8333, 0.5000])
    """

    is_differentiable = False
    higher_is_better = None
    full_state_update = False
    sums: Tensor

    def __init__(self, names: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.names = check_names(names)
        # Rows: predicted, realised, predicted², predicted x realised, updates.
        self.add_state("sums", torch.zeros(5, len(self.names)), dist_reduce_fx="sum")

    @override
    def update(
        self,
        predicted: Tensor,
        before: Tensor,
        after: Tensor,
        names: Sequence[str] | None = None,
    ) -> None:
        """Add one step.

        Args:
            predicted: The result of :func:`predicted_change`, shape ``(m,)``.
            before: The losses at which it was computed, shape ``(m,)``.
            after: The losses of the same data after the step, shape ``(m,)``.
            names: The objectives of the losses; all of them in order by default.

        Raises:
            ShapeError: If the shapes differ, or the number of names differs from the number of
                losses.
            UnknownNameError: If the metric does not have this name.
        """
        if not (predicted.ndim == 1 and predicted.shape == before.shape == after.shape):
            raise ShapeError(
                "`predicted`, `before` and `after` must have the same shape (m,), got "
                f"{tuple(predicted.shape)}, {tuple(before.shape)} and {tuple(after.shape)}."
            )
        where = torch.tensor(positions(names, self.names, len(predicted)), device=self.sums.device)
        p = single_or_double(predicted).to(self.sums)
        # The difference before the cast: losses agree in most of their digits.
        r = (single_or_double(after) - single_or_double(before)).to(self.sums)
        self.sums.index_add_(1, where, torch.stack([p, r, p * p, p * r, torch.ones_like(p)]))

    @override
    def compute(self) -> dict[str, Tensor]:
        """Means per objective and the least-squares ratio of realised to predicted, each (m,)."""
        predicted, realised, squares, products, count = self.sums
        return {
            "predicted": predicted / count,
            "realised": realised / count,
            "ratio": products / squares,
        }

    @override
    def plot(
        self, val: dict[str, Tensor] | None = None, ax: Axes | None = None
    ) -> tuple[Figure, Axes]:
        """Plot the predicted and the realised change of each objective.

        Args:
            val: The result to plot; that of :meth:`compute` by default.
            ax: The axes to draw on; a new figure by default.

        Raises:
            MissingDependencyError: If matplotlib is not installed.
        """
        found = self.compute() if val is None else val
        return draw_pairs(
            self.names,
            [(name, found[name].tolist()) for name in ("predicted", "realised")],
            ax=ax,
            title="Change of each loss by one step",
            xlabel="mean change (left of zero: improved)",
        )
