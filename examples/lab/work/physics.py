"""A physics-informed network: second derivatives, and three losses on separate points."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from typing_extensions import override

from examples.lab.work.networks import Work

VISCOSITY = 0.01 / math.pi
_WIDTHS = (2, 50, 50, 50, 1)


@dataclass(frozen=True)
class PhysicsWork(Work):
    """A network that is trained to solve Burgers' equation, and the points of one batch.

    Attributes:
        x: Points (position, time) where the equation must hold, shape (n, 2).
        boundary: Points on the boundary, where the solution is zero.
        initial: Points at time zero, where it is -sin(pi x).
    """

    boundary: Tensor
    initial: Tensor

    @property
    @override
    def has_tasks(self) -> bool:
        return True

    @override
    def losses(self, model: nn.Module | None = None) -> list[Tensor]:
        network = model or self.model
        at_start = -torch.sin(math.pi * self.initial[:, :1])
        return [
            residual(network, self.x).square().mean(),
            network(self.boundary).square().mean(),
            (network(self.initial) - at_start).square().mean(),
        ]


def residual(network: nn.Module, points: Tensor) -> Tensor:
    r"""Burgers' equation :math:`u_t + u u_x - \nu u_{xx}`, zero where it holds, shape (n, 1)."""
    points = points.detach().requires_grad_()
    u = network(points)
    (first,) = torch.autograd.grad(u.sum(), points, create_graph=True)
    u_x, u_t = first[:, :1], first[:, 1:]
    (second,) = torch.autograd.grad(u_x.sum(), points, create_graph=True)
    found: Tensor = u_t + u * u_x - VISCOSITY * second[:, :1]
    return found


def physics(points: int = 1024, edge: int = 128) -> PhysicsWork:
    """A tanh network 2-50-50-50-1, on random points.

    Args:
        points: Their number inside.
        edge: Their number on the boundary, and at time zero.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(_WIDTHS):
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]
    network = nn.Sequential(*layers[:-1])
    inside, boundary, initial = (_points(n) for n in (points, edge, edge))
    boundary[:, 0] = boundary[:, 0].sign()
    initial[:, 1] = 0.0
    return PhysicsWork(network, inside, torch.empty(points), boundary, initial)


def _points(n: int) -> Tensor:
    """Position in (-1, 1), time in (0, 1)."""
    return torch.stack([2 * torch.rand(n) - 1, torch.rand(n)], dim=1)
