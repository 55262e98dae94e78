"""Manual optimization: several optimizers, toggling, and the arguments of `manual_backward`."""

from typing import Any

import lightning.pytorch as L
import pytest
import torch
from torch import Tensor, nn

from lightning_jd.core import backward
from lightning_jd.errors import ArgumentError
from lightning_jd.surfaces import JacobianDescent, JDReport
from tests.helpers.lightning import assert_same_weights, batches, fit, moved, network


class Players(L.LightningModule):
    """A generator and a critic with two losses each, the critic inside of the generator's graph."""

    def __init__(self, toggle: bool = True) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.toggle = toggle
        self.generator, self.critic = network(0), nn.Linear(3, 1, bias=False)
        with torch.no_grad():
            self.critic.weight.copy_(torch.tensor([[1.0, -2.0, 0.5]]))

    def critic_losses(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        fake = self.generator(x).detach()
        return {
            "real": self.critic(y).square().mean(),
            "fake": (self.critic(fake) - 1).abs().mean(),
        }

    def generator_losses(self, x: Tensor, y: Tensor) -> list[Tensor]:
        fake = self.generator(x)
        return [self.critic(fake).mean(), (fake - y).square().mean()]

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        for optimizer, losses in zip(
            self.optimizers(), (self.critic_losses, self.generator_losses), strict=True
        ):
            if self.toggle:
                self.toggle_optimizer(optimizer)
            optimizer.zero_grad()
            self.manual_backward(losses(*batch))
            optimizer.step()
            if self.toggle:
                self.untoggle_optimizer(optimizer)

    def configure_optimizers(self) -> Any:
        return [
            torch.optim.SGD(self.critic.parameters(), lr=0.05),
            torch.optim.SGD(self.generator.parameters(), lr=0.05),
        ]


def hand_written_players(toggle: bool) -> Players:
    module = Players(toggle)
    pairs = [(module.critic, module.critic_losses), (module.generator, module.generator_losses)]
    optimizers = module.configure_optimizers()
    for _ in range(2):
        for batch in batches():
            for (player, losses), optimizer in zip(pairs, optimizers, strict=True):
                optimizer.zero_grad()
                # Without toggling the weights are chosen for both players, as in a plain backward.
                backward(losses(*batch), player if toggle else module, "upgrad")
                optimizer.step()
    return module


@pytest.mark.parametrize("toggle", [True, False])
def test_two_optimizers(toggle: bool) -> None:
    module = Players(toggle)
    fit(module, callbacks=[JacobianDescent("upgrad")])
    assert moved(module, Players())
    assert_same_weights(module, hand_written_players(toggle), rtol=1e-5, atol=1e-6)


class Calling(L.LightningModule):
    """Calls `manual_backward` with arguments."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net = network()
        self.arguments = arguments

    def losses(self, batch: list[Tensor]) -> Tensor:
        return (self.net(batch[0]) - batch[1]).square().mean(dim=1)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        losses = self.losses(batch)
        arguments = dict(self.arguments)
        if "inputs" in arguments:
            arguments["inputs"] = list(self.net[2].parameters())
        self.manual_backward(losses, **arguments)
        if arguments.get("retain_graph"):
            self.manual_backward(losses.mean())
        optimizer.step()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05)


@pytest.mark.parametrize("memory", ["fast", "low"])
def test_the_graph_can_be_retained(memory: str) -> None:
    module, loop = Calling(retain_graph=True), Calling()
    fit(module, callbacks=[JacobianDescent("mgda", memory=memory)])
    optimizer = loop.configure_optimizers()
    for _ in range(2):
        for batch in batches():
            optimizer.zero_grad()
            backward(loop.losses(batch), loop, "mgda")
            loop.losses(batch).mean().backward()
            optimizer.step()
    assert_same_weights(module, loop, rtol=1e-5, atol=1e-6)


def test_only_the_inputs_that_are_asked_for() -> None:
    module, loop = Calling(inputs=True), Calling()
    fit(module, callbacks=[JacobianDescent("upgrad")])
    assert not moved(module.net[0], network()[0])
    optimizer = loop.configure_optimizers()
    for _ in range(2):
        for batch in batches():
            optimizer.zero_grad()
            backward(loop.losses(batch), loop.net[2], "upgrad")
            optimizer.step()
    assert_same_weights(module, loop, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("arguments", [{"gradient": torch.ones(4)}, {"create_graph": True}])
def test_other_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(
        ArgumentError, match="only the arguments `retain_graph`, `inputs` and `name`"
    ):
        fit(Calling(**arguments), callbacks=[JacobianDescent("upgrad")])


class Named(Players):
    """Says what each update is."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        first, second = self.optimizers()
        for name, optimizer, losses in (
            ("critic", first, self.critic_losses),
            ("generator", second, self.generator_losses),
        ):
            optimizer.zero_grad()
            self.manual_backward(losses(*batch), name=name)
            optimizer.step()


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (Players(toggle=True), ("optimizer_0", "optimizer_1")),
        (Players(toggle=False), ("backward_0", "backward_1")),
        (Named(toggle=False), ("critic", "generator")),
    ],
)
def test_every_update_of_a_batch_is_reported_and_logged(module: Any, names: Any) -> None:
    callback = JacobianDescent("upgrad", log={"every_n_steps": 1})
    page = JDReport("page", every_n_steps=1)
    found = fit(module, callbacks=[callback, page]).callback_metrics
    assert tuple(callback.reports) == names
    assert callback.reports[names[0]].names == ("real", "fake")
    assert callback.report is callback.reports[names[1]]
    for name, tasks in zip(names, (("real", "fake"), ("0", "1")), strict=True):
        assert f"jd/{name}/conflict_rate" in found
        assert {f"jd/weight/{name}/{task}" for task in tasks} <= found.keys()
    assert "jd/conflict_rate" not in found  # of which of them?
    members = page.run.members("weight/")
    assert {f"{names[0]}/real", f"{names[1]}/1"} <= members.keys()
    assert page.run.cosines is not None
    assert len(page.run.cosines.names) == 4
