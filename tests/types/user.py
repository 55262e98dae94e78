"""A program with every public name of the README and the quickstart, for type checkers."""

import lightning.pytorch as L
import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.nn import functional as F

import lightning_jd
import lightning_jd.fabric
from lightning_jd import (
    Accumulator,
    JacobianDescent,
    JDDDPStrategy,
    JDModuleMixin,
    JDReport,
    JDStrategy,
    Normalized,
    available,
    backward,
    explain,
    gradient_norms,
    gramian,
    jacobian,
    project,
    register,
    resolve,
)
from lightning_jd import fabric as jd
from lightning_jd.aggregators import GramianAggregator, Mean, UPGrad
from lightning_jd.errors import JDError


class Lit(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(8, 3)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.net(x), y, reduction="none")


class Flagged(JDModuleMixin, L.LightningModule):
    jacobian_descent = "upgrad"


@register
class Longest(GramianAggregator):
    def weights(self, gramian: Tensor) -> Tensor:
        squares = gramian.diagonal()
        return (squares == squares.max()).to(gramian)


def by_length(gramian: Tensor) -> Tensor:
    return gramian.diagonal().rsqrt()


def in_lightning() -> None:
    L.Trainer(callbacks=[JacobianDescent("upgrad"), JDReport()], max_epochs=2).fit(Lit())
    L.Trainer(callbacks=[JacobianDescent("upgrad", split="auto")])
    L.Trainer(callbacks=[JacobianDescent({"name": "cagrad", "c": 0.4})]).fit(Flagged())
    L.Trainer(strategy=JDStrategy("mgda", params="shared"))
    L.Trainer(strategy=JDDDPStrategy(UPGrad(reg=0), find_unused_parameters=True))
    JacobianDescent(by_length, rows="tasks", groups="layer", log={"every_n_steps": 1})
    JacobianDescent(UPGrad, params=["encoder.*"], weights_every=4, nonfinite="skip", memory="low")
    JacobianDescent(examples="id")
    table = JacobianDescent("mean", examples=lambda batch: batch[2]).examples
    print(table["index"][table["loss"].argmax()])
    callback = JacobianDescent(accumulation="step", split={"by": "terms", "names": ["a", "b"]})
    if callback.report is not None:
        print(callback.report.gramian.dtype, callback.skipped, len(callback.reports))


def in_torch() -> None:
    model = nn.Linear(8, 2)
    losses = model(torch.randn(4, 8)).square().mean(dim=1)
    report = backward(losses, model, "upgrad")
    print(report.gramian.shape, report.weights.sum(), report.names)
    named: dict[str, Tensor | None] = {"a": losses[0], "b": None}
    scaler = torch.amp.GradScaler("cpu")
    backward(named, model, by_length, params="shared", rows="tasks", scaler=scaler)
    backward([losses[0], losses[1]], model.parameters())
    step = Accumulator(model, Longest())
    step.add(losses)
    print(step.backward().gramian)
    jd.backward(Fabric(), {"a": losses[0]}, model, "upgrad", params="shared")
    lightning_jd.fabric.backward(Fabric(), losses, model)
    print(gramian(losses, model), jacobian(losses, model), explain(losses, model))
    print(gradient_norms(losses, model), project(losses, model, dim=8), Normalized("mgda"))
    print(available()["upgrad"], resolve("upgrad"), Mean(), lightning_jd.__version__)


def main() -> None:
    try:
        in_lightning()
        in_torch()
    except JDError as error:
        print(error)
