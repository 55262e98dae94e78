"""The physics-informed network: its residual against a solution known in closed form."""

import math

import pytest
import torch
from torch import Tensor, nn

from examples.lab.work.physics import VISCOSITY, physics, residual


class Shock(nn.Module):
    """The travelling shock u = c - tanh((x - c t) / (2 v)) solves Burgers' equation."""

    def forward(self, points: Tensor) -> Tensor:
        x, t = points[:, :1], points[:, 1:]
        return 0.5 - torch.tanh((x - 0.5 * t) / (2 * VISCOSITY))


def test_the_residual_of_a_solution_is_zero() -> None:
    points = torch.rand(50, 2, dtype=torch.float64) * 0.02
    zero = residual(Shock(), points)
    assert zero.shape == (50, 1)
    assert float(zero.detach().abs().max()) < 1e-10
    assert float(residual(lambda p: p[:, :1] ** 2, points).detach().abs().max()) > 1e-4


def test_three_losses_on_separate_points() -> None:
    work = physics(points=16, edge=4)
    assert work.has_tasks
    assert len(work.losses()) == 3
    assert set(work.boundary[:, 0].tolist()) <= {-1.0, 1.0}
    assert work.initial[:, 1].tolist() == [0.0] * 4
    still = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    nn.init.zeros_(still[2].weight)
    nn.init.zeros_(still[2].bias)
    equation, boundary, initial = (float(loss.detach()) for loss in work.losses(still))
    assert equation == boundary == 0.0
    assert initial == pytest.approx(float(torch.sin(math.pi * work.initial[:, 0]).square().mean()))
