"""Physics-informed networks: the equation, its boundary and its start are objectives of their own.

Burgers' equation and a Helmholtz equation, solved by small networks, with five ways to make one
update out of the losses. Errors are relative L2 errors against references that no network has seen:
the Cole-Hopf transformation by quadrature, and an analytic solution.
"""

import math
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from study import Results, Setting, arguments, choose, plot_curves, print_table, run_all
from torch import Tensor, nn

from examples.lab.figure import new_figure, save_figure
from lightning_jd import backward
from lightning_jd.aggregators import ConFIG, Constant, GradNorm, Sum, UPGrad

VISCOSITY, WAVES = 0.05 / math.pi, (1, 2)
WEIGHTS = [0.1, 10.0, 100.0, 1000.0]  # of boundary and start, with 1 for the equation
POINTS = 20  # of an error curve
METHODS = {
    "sum": lambda count, _: Sum(),
    "tuned sum": lambda count, weight: Constant([1.0] + [weight] * (count - 1)),
    "GradNorm": lambda count, _: GradNorm(),
    "ConFIG": lambda count, _: ConFIG(),
    "UPGrad": lambda count, _: UPGrad(),
}


def derivatives(u: Tensor, points: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(u.sum(), points, create_graph=True)[0].split(1, dim=1)


def square(n: int) -> Tensor:
    return 2 * torch.rand(n, 2) - 1


class Burgers:
    """u_t + u u_x = ν u_xx for x in (-1, 1), t in (0, 1); u = 0 at the ends, -sin(πx) at t = 0."""

    def __init__(self, viscosity: float = VISCOSITY) -> None:
        self.viscosity = viscosity

    def losses(self, network: nn.Module) -> dict[str, Tensor]:
        inside, boundary, start = (square(n) for n in (256, 64, 64))
        for points in (inside, boundary, start):
            points[:, 1] = (points[:, 1] + 1) / 2
        boundary[:, 0], start[:, 1] = boundary[:, 0].sign(), 0.0
        u = network(inside.requires_grad_())
        u_x, u_t = derivatives(u, inside)
        u_xx = derivatives(u_x, inside)[0]
        return {
            "equation": (u_t + u * u_x - self.viscosity * u_xx).square().mean(),
            "boundary": network(boundary).square().mean(),
            "start": (network(start) + torch.sin(math.pi * start[:, :1])).square().mean(),
        }

    def solution(self, points: Tensor) -> Tensor:
        """The Cole-Hopf transformation, its integrals by Gauss-Hermite quadrature in float64."""
        nodes, weights = (torch.from_numpy(a) for a in np.polynomial.hermite.hermgauss(100))
        y = points[:, :1] - 2 * (self.viscosity * points[:, 1:]).sqrt() * nodes
        density = weights * torch.exp(-torch.cos(math.pi * y) / (2 * math.pi * self.viscosity))
        numerator = (density * torch.sin(math.pi * y)).sum(dim=1, keepdim=True)
        return -numerator / density.sum(dim=1, keepdim=True)

    def grid(self) -> Tensor:
        return torch.cartesian_prod(torch.linspace(-1, 1, 101), torch.linspace(0, 1, 21))


class Helmholtz:
    """Δu + u = q on (-1, 1)², zero on the boundary, with u = sin(πx) sin(2πy)."""

    def solution(self, points: Tensor) -> Tensor:
        return torch.sin(points * math.pi * torch.tensor(WAVES)).prod(dim=1, keepdim=True)

    def losses(self, network: nn.Module) -> dict[str, Tensor]:
        inside, boundary = square(256), square(128)
        boundary[:64, 0], boundary[64:, 1] = boundary[:64, 0].sign(), boundary[64:, 1].sign()
        u = network(inside.requires_grad_())
        u_x, u_y = derivatives(u, inside)
        laplacian = derivatives(u_x, inside)[0] + derivatives(u_y, inside)[1]
        eigenvalue = math.pi**2 * sum(wave**2 for wave in WAVES)
        q = (1 - eigenvalue) * self.solution(inside.detach())
        return {
            "equation": (laplacian + u - q).square().mean(),
            "boundary": network(boundary).square().mean(),
        }

    def grid(self) -> Tensor:
        return torch.cartesian_prod(torch.linspace(-1, 1, 61), torch.linspace(-1, 1, 61))


PROBLEMS = {"Burgers": Burgers(), "Helmholtz": Helmholtz()}


def train(setting: Setting, seed: int, steps: int) -> dict[str, float | list[float]]:
    problem = PROBLEMS[setting.problem]
    points = problem.grid()
    reference = problem.solution(points.double()).float()
    layers = [nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32)]
    network = nn.Sequential(*layers, nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    method = METHODS[setting.method](3 if setting.problem == "Burgers" else 2, setting.value)
    errors = []
    for step in range(steps):
        optimizer.zero_grad()
        backward(problem.losses(network), network, method)
        optimizer.step()
        schedule.step()
        if (step + 1) * POINTS % steps < POINTS:
            with torch.no_grad():
                difference = network(points) - reference
            errors.append((difference.norm() / reference.norm()).item())
    return {"error": errors[-1], "score": -errors[-1], "errors": errors}


def draw(results: Results, steps: int) -> Figure:
    figure = new_figure(10, 3.8, "Physics-informed networks: mean and standard error over seeds")
    for axis, problem in zip(figure.subplots(1, 2), PROBLEMS, strict=True):
        here = {setting: runs for setting, runs in results.items() if setting.problem == problem}
        plot_curves(axis, here, "errors", steps)
        axis.set(title=problem, xlabel="step", ylabel="relative L2 error", yscale="log")
    return figure


def publish(results: Results, folder: Path, steps: int) -> None:
    plain = {Setting(name, "tuned sum", 1.0): results[Setting(name, "sum")] for name in PROBLEMS}
    best = choose({**results, **plain}, "score")
    print_table(best, {"error": "relative L2 error"}, folder, tuned="weight")
    save_figure(draw(best, steps), folder / "physics.png")


if __name__ == "__main__":
    options = arguments(__doc__, steps=1200)
    settings = [
        Setting(problem, method, value)
        for problem in PROBLEMS
        for method in METHODS
        for value in (WEIGHTS if method == "tuned sum" else ["-"])
    ]
    publish(run_all(train, settings, options), options.output, options.steps)
