"""PINA's solvers and problem zoo, unmodified, with Jacobian descent as a callback.

Poisson, Burgers and Helmholtz are PINA's own problems; Klein-Gordon is written down here as a PINA
problem. The solver adds its losses up; `split="terms"` finds them again, and their names are those
that PINA logs. Errors are relative L2 errors against solutions that no network has seen.
"""

import logging
import math
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib.figure import Figure
from physics import VISCOSITY, Burgers
from pina import Condition, LabelTensor, Trainer
from pina.domain import CartesianDomain
from pina.equation import Equation
from pina.model import FeedForward
from pina.operator import grad
from pina.optim import TorchOptimizer
from pina.problem import SpatialProblem, TimeDependentProblem
from pina.problem.zoo import BurgersProblem, HelmholtzProblem, Poisson2DSquareProblem
from pina.solver import PINN
from study import Results, Setting, arguments, print_table, run_all
from torch import Tensor

from examples.lab.figure import new_figure, save_figure
from lightning_jd import JacobianDescent, available

METHODS = ["sum", "upgrad", "config", "nashmtl", "gradnorm", "uw", "dwa", "famo"]
METHODS += [
    each for each in ("relobralo", "softadapt", "lra", "ntk", "uwso") if each in available()
]
INSIDE, ELSEWHERE = 256, 128  # points of the equation, and of each other condition


def wave(points: Tensor) -> Tensor:
    """The solution of the Klein-Gordon problem."""
    x, t = points[:, :1], points[:, 1:]
    return x * torch.cos(2 * math.pi * t) + (x * t) ** 3


def klein_gordon(points: LabelTensor, u: LabelTensor) -> Tensor:
    """u_tt - u_xx + u³ minus the same of the solution."""
    u_t, u_x = (grad(u, points, components=["u"], d=[d]) for d in ("t", "x"))
    u_tt = grad(u_t, points, components=["dudt"], d=["t"]).tensor
    u_xx = grad(u_x, points, components=["dudx"], d=["x"]).tensor
    x, t = points.extract(["x"]).tensor, points.extract(["t"]).tensor
    of_solution = -4 * math.pi**2 * x * torch.cos(2 * math.pi * t) + 6 * x * t * (x**2 - t**2)
    solution = wave(torch.cat([x, t], dim=1))
    return u_tt - u_xx + u.tensor**3 - (of_solution + solution**3)


def value(points: LabelTensor, u: LabelTensor) -> Tensor:
    return u.tensor - wave(points.extract(["x", "t"]).tensor)


class KleinGordonProblem(TimeDependentProblem, SpatialProblem):
    """u_tt = u_xx - u³ + f on (0, 1)², with values at both ends, and value and speed at t = 0."""

    output_variables = ["u"]  # noqa: RUF012  # as the library asks for it
    spatial_domain = CartesianDomain({"x": [0, 1]})
    temporal_domain = CartesianDomain({"t": [0, 1]})
    domains = {  # noqa: RUF012
        "D": spatial_domain.update(temporal_domain),
        "t0": spatial_domain.update(CartesianDomain({"t": 0})),
        "boundary": spatial_domain.partial().update(temporal_domain),
    }
    conditions = {  # noqa: RUF012
        "boundary": Condition(domain="boundary", equation=Equation(value)),
        "t0": Condition(domain="t0", equation=Equation(value)),
        "speed": Condition(
            domain="t0", equation=Equation(lambda x, u: grad(u, x, components=["u"], d=["t"]))
        ),
        "D": Condition(domain="D", equation=Equation(klein_gordon)),
    }


def product(first: float, second: float, sign: float = 1.0) -> Callable[[Tensor], Tensor]:
    return lambda p: (
        sign * torch.sin(first * math.pi * p[:, :1]) * torch.sin(second * math.pi * p[:, 1:])
    )


#: The problem, its solution, and the corners of its domain.
PROBLEMS = {
    "Poisson": (Poisson2DSquareProblem, product(1, 1, -1.0), (0, 1, 0, 1)),
    "Burgers": (lambda: BurgersProblem(nu=VISCOSITY), Burgers().solution, (-1, 1, 0, 1)),
    "Helmholtz": (lambda: HelmholtzProblem(alpha_x=1, alpha_y=2), product(1, 2), (-1, 1, -1, 1)),
    "Klein-Gordon": (KleinGordonProblem, wave, (0, 1, 0, 1)),
}


def solver_of(name: str) -> PINN:
    """A solver as PINA's tutorials build it."""
    problem = PROBLEMS[name][0]()
    for domain in problem.domains:
        points = INSIDE if domain == "D" else ELSEWHERE
        problem.discretise_domain(points, "random", domains=[domain])
    network = FeedForward(2, 1, layers=[32, 32, 32])
    return PINN(problem, network, optimizer=TorchOptimizer(torch.optim.Adam, lr=5e-3))


def error_of(solver: PINN, name: str) -> float:
    """The relative L2 error on a grid."""
    _, solution, (left, right, low, high) = PROBLEMS[name]
    points = torch.cartesian_prod(torch.linspace(left, right, 61), torch.linspace(low, high, 61))
    points = points[points[:, 1] > low]  # the quadrature for Burgers needs t > 0
    labels = ["x", "t"] if "t" in solver.problem.input_variables else ["x", "y"]
    reference = solution(points.double()).float()
    with torch.no_grad():
        found = solver(LabelTensor(points, labels)).tensor
    return ((found - reference).norm() / reference.norm()).item()


def train(setting: Setting, seed: int, steps: int) -> dict[str, float]:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore")
    solver = solver_of(setting.problem)
    trainer = Trainer(
        solver,
        callbacks=[JacobianDescent(setting.method, split="terms")],  # the one line
        max_epochs=steps,  # an epoch of PINA is one batch
        accelerator="cpu",
        **dict.fromkeys(["logger", "enable_checkpointing"], False),
        **dict.fromkeys(["enable_progress_bar", "enable_model_summary"], False),
    )
    trainer.train()
    return {"error": error_of(solver, setting.problem)}


def draw(results: Results, steps: int) -> Figure:
    title = f"PINA's problems after {steps} steps: mean and standard error over seeds"
    figure = new_figure(11, 3.4, title)
    for axis, problem in zip(figure.subplots(1, len(PROBLEMS)), PROBLEMS, strict=True):
        for place, method in enumerate(METHODS):
            runs = results.get(Setting(problem, method), [])
            values = torch.tensor([run["error"] for run in runs if run])
            if len(values):
                spread = values.std() / len(values) ** 0.5 if len(values) > 1 else 0.0
                axis.errorbar(values.mean(), -place, xerr=spread, fmt="o", capsize=2)
        axis.set(title=problem, xlabel="relative L2 error", xscale="log")
        axis.set_yticks([-place for place in range(len(METHODS))], METHODS)
        axis.grid(alpha=0.3)
    return figure


def publish(results: Results, folder: Path, steps: int) -> None:
    print_table(results, {"error": "relative L2 error"}, folder, tuned="weight")
    save_figure(draw(results, steps), folder / "pina_zoo.png")


if __name__ == "__main__":
    options = arguments(__doc__, steps=600)
    settings = [Setting(problem, method) for method in METHODS for problem in PROBLEMS]
    publish(run_all(train, settings, options), options.output, options.steps)
