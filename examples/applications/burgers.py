"""Burgers' equation by a physics-informed network: the protocol of the notebook of ConFIG.

`docs/examples/pinn_burgers.ipynb` of github.com/tum-pbs/ConFIG: a network 2-50-50-50-50-50-1 with
tanh, Xavier weights, biases of 0.001; 50 points of the start, 50 of the boundary and 2,000 of the
equation from a Latin hypercube in every iteration; Adam 1e-4; the best mean squared error on
100 x 256 points. Published: Adam on the sum 0.03095, ConFIG 0.00638, M-ConFIG 0.00186. Here the
reference is the Cole-Hopf transformation in the place of a simulation.
"""

import math
from pathlib import Path

import torch
from matplotlib.figure import Figure
from physics import Burgers, derivatives
from scipy.stats.qmc import LatinHypercube
from study import Results, Setting, arguments, plot_curves, print_table, run_all
from torch import Tensor, nn

from examples.lab.figure import new_figure, save_figure
from lightning_jd import backward
from lightning_jd.aggregators import ConFIG, MConFIG, Sum, UPGrad

VISCOSITY = 0.01 / math.pi
FIRST_SEED = 19018  # of the notebook; the others follow it
EVERY, POINTS = 10, 20  # steps between two errors, points of a curve
METHODS = {"Adam on the sum": Sum, "ConFIG": ConFIG, "M-ConFIG": MConFIG, "UPGrad": UPGrad}
PUBLISHED = {"Adam on the sum": "0.0310", "ConFIG": "0.0064", "M-ConFIG": "0.0019", "UPGrad": "-"}


class Samples:
    """Fresh points for every step, from the two random engines of the notebook."""

    def __init__(self, seed: int) -> None:
        self._line = LatinHypercube(d=1, rng=seed)
        self._square = LatinHypercube(d=2, rng=seed)

    def line(self, n: int) -> Tensor:
        return torch.tensor(self._line.random(n), dtype=torch.float32)

    def square(self, n: int) -> Tensor:
        points = torch.tensor(self._square.random(n), dtype=torch.float32)
        return points * torch.tensor([2.0, 1.0]) - torch.tensor([1.0, 0.0])


def equation(network: nn.Module, samples: Samples) -> Tensor:
    points = samples.square(2000).requires_grad_()
    u = network(points)
    u_x, u_t = derivatives(u, points)
    u_xx = derivatives(u_x, points)[0]
    return (u_t + u * u_x - VISCOSITY * u_xx).square().mean()


def boundary(network: nn.Module, samples: Samples) -> Tensor:
    ends = torch.tensor([-1.0, 1.0]).repeat_interleave(25)[:, None]
    return network(torch.cat([ends, samples.line(50)], dim=1)).square().mean()


def start(network: nn.Module, samples: Samples) -> Tensor:
    x = 2 * samples.line(50) - 1
    u = network(torch.cat([x, torch.zeros_like(x)], dim=1))
    return (u + torch.sin(math.pi * x)).square().mean()


LOSSES = {"start": start, "boundary": boundary, "equation": equation}


def grid() -> Tensor:
    x = torch.linspace(-1 + 1 / 256, 1 - 1 / 256, 256, dtype=torch.float64)
    return torch.cartesian_prod(torch.linspace(0, 1, 100, dtype=torch.float64), x).flip(1)


def train(setting: Setting, seed: int, steps: int) -> dict[str, float | list[float]]:
    torch.manual_seed(FIRST_SEED + seed)
    points = grid()
    reference = Burgers(VISCOSITY).solution(points).float()
    layers: list[nn.Module] = [nn.Linear(2, 50), nn.Tanh()]
    for _ in range(4):
        layers += [nn.Linear(50, 50), nn.Tanh()]
    network = nn.Sequential(*layers, nn.Linear(50, 1))
    for layer in network:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_normal_(layer.weight)
            nn.init.constant_(layer.bias, 0.001)
    samples, method = Samples(FIRST_SEED + seed), METHODS[setting.method]()
    in_turn = setting.method == "M-ConFIG"  # which has the scaling of Adam in it
    optimizer = torch.optim.SGD if in_turn else torch.optim.Adam
    descent = optimizer(network.parameters(), lr=5e-4 if in_turn else 1e-4)
    errors: list[float] = []
    for step in range(steps):
        names = [list(LOSSES)[step % len(LOSSES)]] if in_turn else list(LOSSES)
        descent.zero_grad()
        backward({name: LOSSES[name](network, samples) for name in names}, network, method)
        descent.step()
        if (step + 1) % EVERY == 0 or step + 1 == steps:
            with torch.no_grad():
                errors.append((network(points.float()) - reference).square().mean().item())
    between = max(1, len(errors) // POINTS)
    return {"best": min(errors), "last": errors[-1], "curve": errors[between - 1 :: between]}


def draw(results: Results, steps: int) -> Figure:
    figure = new_figure(6.5, 3.8, "Burgers' equation, protocol of ConFIG's notebook")
    axis = figure.subplots()
    plot_curves(axis, results, "curve", steps)
    axis.set(xlabel="iteration", ylabel="mean squared error", yscale="log")
    return figure


def publish(results: Results, folder: Path, steps: int) -> None:
    shown = {
        Setting(setting.problem, setting.method, PUBLISHED[setting.method]): runs
        for setting, runs in results.items()
    }
    columns = {"first": "seed of the notebook", "best": "best error", "last": "last error"}
    rows = {s: [run | {"first": runs[0]["best"]} for run in runs] for s, runs in shown.items()}
    print_table(rows, columns, folder, tuned="published")
    save_figure(draw(results, steps), folder / "burgers.png")


if __name__ == "__main__":
    options = arguments(__doc__, steps=5000)
    settings = [Setting("Burgers", method) for method in METHODS]
    publish(run_all(train, settings, options), options.output, options.steps)
