"""The angles between the gradients and two updates: the one that was made and the mean."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_jd.errors import ArgumentError, ShapeError
from lightning_jd.linalg import check_matrix
from lightning_jd.metrics._unit import check_weights, single_or_double, unit_gramian


class Direction(NamedTuple):
    """An update d, given by its inner products with the gradients and its length.

    Attributes:
        products: Inner product of each gradient with d, shape ``(m,)``.
        squared_length: The squared length of d, ().
    """

    products: Tensor
    squared_length: Tensor

    @classmethod
    def of_weights(cls, gramian: Tensor, weights: Tensor) -> "Direction":
        """The update Jᵀw, from the Gramian (m, m) and w (m,).

        Example:
            >>> Direction.of_weights(torch.eye(2), torch.tensor([2.0, 1.0]))
            Direction(products=tensor([2., 1.]), squared_length=tensor(5.))
        """
        weights = weights.to(gramian)
        products = gramian @ weights
        return cls(products, weights @ products)

    @classmethod
    def joined(cls, parts: Sequence["Direction"]) -> "Direction":
        """The update made of these parts, each over its own parameters."""
        products = torch.stack([part.products for part in parts])
        return cls(products.sum(dim=0), torch.stack([part.squared_length for part in parts]).sum())


class Alignment(NamedTuple):
    """Cosines of an update d and of the mean update d₀ = Jᵀ(1/m, ..., 1/m).

    An update of (numerically) no length has no direction; all its cosines are 0.

    Attributes:
        cosines: Row 0 between d and each gradient, row 1 between d₀ and each gradient, (2, m).
        similarity: The cosine between d and d₀, ().
    """

    cosines: Tensor
    similarity: Tensor


def alignment(
    gramian: Tensor | None, weights: Tensor | None, jacobian: Tensor | None, update: Tensor | None
) -> Alignment:
    """Angles from ``jacobian`` and ``update`` if given, else from ``gramian`` and ``weights``.

    Raises:
        ArgumentError: If neither pair is complete.
    """
    if jacobian is not None and update is not None:
        return _of_update(jacobian, update)
    if gramian is not None and weights is not None:
        return of_unit(*unit_gramian(gramian), weights, eps=torch.finfo(gramian.dtype).eps)
    arguments = {"gramian": gramian, "weights": weights, "jacobian": jacobian, "update": update}
    given = [f"`{name}`" for name, value in arguments.items() if value is not None]
    raise ArgumentError(
        "An update must be given as `gramian` and `weights`, or as `jacobian` and `update`, "
        f"got {' and '.join(given) or 'none of them'}."
    )


def of_unit(C: Tensor, norms: Tensor, weights: Tensor, *, eps: float) -> Alignment:
    """Angles of d = Jᵀw from cosines C, norms n and w; ``eps`` is the rounding of the Gramian.

    With y = w n / Σ|w n|, the gradient i and d have the cosine (C y)ᵢ / √(yᵀ C y), whatever the
    scales of the gradients and of the weights. The root is the length of d relative to what it
    would be without conflict; below √eps it is rounding, and a larger divisor keeps noise small.
    """
    check_weights(weights, len(norms))
    Y = torch.stack([single_or_double(weights).to(norms) * norms, norms])  # (2, m)
    Y = Y / Y.abs().sum(dim=1, keepdim=True).clamp(min=torch.finfo(Y.dtype).tiny)
    products = Y @ C  # (2, m)
    Q = products @ Y.T
    lengths = Q.diagonal().clamp(min=eps).sqrt()
    cosines = (products / lengths[:, None]).clamp(-1, 1)
    return Alignment(cosines, (Q[0, 1] / lengths.prod()).clamp(-1, 1))


def of_direction(C: Tensor, norms: Tensor, direction: Direction) -> Alignment:
    """Angles of an update that is known by its inner products with the gradients."""
    mean = of_unit(C, norms, torch.ones_like(norms), eps=torch.finfo(norms.dtype).eps)
    length = direction.squared_length.to(norms).clamp(min=0).sqrt()
    divisor = norms * length
    products = direction.products.to(norms)
    cosines = (products / torch.where(divisor > 0, divisor, torch.inf)).clamp(-1, 1)
    # <d, d0> is the mean of the products, and the length of d0 follows from the cosines.
    shares = norms / norms.sum().clamp(min=torch.finfo(norms.dtype).tiny)
    between = (shares @ cosines) / (shares @ C @ shares).clamp(min=torch.finfo(C.dtype).eps).sqrt()
    return Alignment(torch.stack([cosines, mean.cosines[1]]), between.clamp(-1, 1))


def _of_update(jacobian: Tensor, update: Tensor) -> Alignment:
    check_matrix("jacobian", jacobian)
    if update.shape != jacobian.shape[1:]:
        raise ShapeError(
            f"`update` must have one entry per column of the Jacobian, shape "
            f"{tuple(jacobian.shape[1:])}, got {tuple(update.shape)}."
        )
    J = single_or_double(jacobian)
    D = torch.stack([single_or_double(update).to(J), J.mean(dim=0)])  # (2, n)
    norms = torch.linalg.vector_norm(J, dim=1)
    lengths = torch.linalg.vector_norm(D, dim=1)
    # The mean of opposed gradients is rounding, not a direction.
    rounding = torch.finfo(jacobian.dtype).eps * norms.mean()
    lengths = torch.where(lengths > torch.stack([0 * rounding, rounding]), lengths, torch.inf)
    cosines = (D @ J.T) / lengths[:, None] / torch.where(norms > 0, norms, 1.0)
    similarity = D[0] / lengths[0] @ (D[1] / lengths[1])
    return Alignment(cosines.clamp(-1, 1), similarity.clamp(-1, 1))
