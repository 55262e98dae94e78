"""Two pairs of quadratic objectives in the plane, whose Pareto sets are known."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_POINTS = 2001  # of the curve that a Pareto set is drawn and measured with


@dataclass(frozen=True)
class Quadratics:
    r"""Objectives :math:`f_i(x) = (x - v_i)^\top M_i (x - v_i)` with semi-definite :math:`M_i`.

    Args:
        title: What figures call the function.
        matrices: M, shape (m, n, n).
        centres: v, shape (m, n).
    """

    title: str
    matrices: Tensor
    centres: Tensor

    def to(self, like: Tensor) -> "Quadratics":
        """The same on the device and in the precision of a tensor."""
        return Quadratics(self.title, self.matrices.to(like), self.centres.to(like))

    def values(self, x: Tensor) -> Tensor:
        """The objectives of points of shape (..., n), shape (..., m).

        Example:
            >>> ELEMENT_WISE.values(torch.tensor([3.0, -2.0], dtype=torch.float64)).tolist()
            [9.0, 4.0]
        """
        offsets = x.unsqueeze(-2) - self.centres
        return torch.einsum("...mi,mij,...mj->...m", offsets, self.matrices, offsets)

    def jacobian(self, x: Tensor) -> Tensor:
        """The gradients, one row each, shape (..., m, n).

        Example:
            >>> ELEMENT_WISE.jacobian(torch.tensor([3.0, -2.0], dtype=torch.float64)).tolist()
            [[6.0, 0.0], [0.0, -4.0]]
        """
        return 2 * torch.einsum("mij,...mj->...mi", self.matrices, x.unsqueeze(-2) - self.centres)

    def pareto_set(self) -> Tensor:
        """Points that no other improves on, from the best of objective 2 to that of 1, (p, 2).

        They minimise :math:`t f_1 + (1 - t) f_2` for t strictly between 0 and 1.

        Example:
            >>> ELEMENT_WISE.pareto_set().abs().max().item()
            0.0
        """
        t = torch.linspace(0, 1, _POINTS, dtype=torch.float64).clamp(1e-9, 1 - 1e-9)
        share = torch.stack([t, 1 - t])
        left = torch.einsum("mp,mij->pij", share, self.matrices)
        right = torch.einsum("mp,mij,mj->pi", share, self.matrices, self.centres)
        points: Tensor = torch.linalg.solve(left, right)
        return points


def distance_to_curve(points: Tensor, curve: Tensor) -> Tensor:
    """Distance of points (..., 2) to a curve of line segments (p, 2).

    Example:
        >>> line = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
        >>> distance_to_curve(torch.tensor([[0.5, 2.0], [2.0, 0.0]]), line)
        tensor([2., 1.])
    """
    starts, directions = curve[:-1], curve[1:] - curve[:-1]
    from_start = points.unsqueeze(-2) - starts
    lengths = directions.square().sum(-1).clamp(min=1e-300)
    along = ((from_start * directions).sum(-1) / lengths).clamp(0, 1)
    nearest = starts + along.unsqueeze(-1) * directions
    distances: Tensor = (points.unsqueeze(-2) - nearest).norm(dim=-1).amin(dim=-1)
    return distances


def _convex_form() -> Quadratics:
    theta, eps = math.pi / 16, 0.01
    U = torch.tensor(
        [[math.cos(theta), -math.sin(theta)], [math.sin(theta), math.cos(theta)]],
        dtype=torch.float64,
    )
    first, second = (torch.tensor([a, eps], dtype=torch.float64).diag() for a in (1.0, 3.0))
    return Quadratics(
        "convex quadratic form",
        torch.stack([U @ first @ U.T, U.T @ second @ U]),
        torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64),
    )


#: (x₁², x₂²): no conflict, but every point of an axis is weakly stationary.
ELEMENT_WISE = Quadratics(
    "element-wise quadratic",
    torch.stack(
        [torch.diag(torch.tensor(d, dtype=torch.float64)) for d in ((1.0, 0.0), (0.0, 1.0))]
    ),
    torch.zeros(2, 2, dtype=torch.float64),
)
#: Two narrow valleys with different directions and scales: conflict, and imbalance.
CONVEX_FORM = _convex_form()
