"""Small modules, data and trainers for the tests with Lightning."""

from collections.abc import Callable
from typing import Any, Literal

import lightning.pytorch as L
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
Form = Literal["scalar", "single", "instances", "matrix", "tasks", "list", "in_dict"]


def batches(n: int = 24, batch_size: int = 4, seed: int = 0) -> DataLoader[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, generator=generator)
    y = torch.randn(n, 3, generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=batch_size)


class ResumableLoader(DataLoader[tuple[Tensor, ...]]):
    """A loader that a checkpoint in the middle of an epoch remembers the position of."""

    position = 0

    def __iter__(self) -> Any:
        start = self.position % len(self)
        for i, batch in enumerate(super().__iter__()):
            if i >= start:
                self.position = i + 1
                yield batch

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def network(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


class Regression(L.LightningModule):
    """A small regression on three targets, which returns its losses in the form it is asked for.

    The scalar is the mean over instances and targets. So it is the mean of the losses in all other
    forms, which are the cases of the test against plain training.
    """

    def __init__(
        self,
        form: Form = "instances",
        optimizer: Callable[..., Any] = torch.optim.SGD,
        net: nn.Module | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__()
        self.form = form
        self.net = net or network()
        self.optimizer = optimizer
        self.arguments = arguments or {"lr": 0.05}
        self.seen: list[float] = []

    def errors(self, batch: list[Tensor]) -> Tensor:
        x, y = batch
        return (self.net(x) - y).square()  # (b, 3)

    def in_form(self, errors: Tensor) -> Any:
        tasks = errors.mean(dim=0)
        return {
            "scalar": lambda: errors.mean(),
            "single": lambda: errors.mean().reshape(1),
            "instances": lambda: errors.mean(dim=1),
            "matrix": lambda: errors,
            "tasks": lambda: {"loss": {"a": tasks[0], "b": tasks[1], "c": tasks[2]}},
            "list": lambda: {"loss": list(tasks.unbind())},
            "in_dict": lambda: {"loss": errors.mean(dim=1), "extra": errors.detach().max()},
        }[self.form]()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        return self.in_form(self.errors(batch))

    def configure_optimizers(self) -> Any:
        return self.optimizer(self.parameters(), **self.arguments)


class ManualRegression(Regression):
    """The same in manual optimization."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.automatic_optimization = False

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        losses = self.in_form(self.errors(batch))
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(losses["loss"] if isinstance(losses, dict) else losses)
        optimizer.step()


def trainer(**kwargs: Any) -> L.Trainer:
    return L.Trainer(**{**QUIET, "max_epochs": 2, **kwargs})


def fit(module: L.LightningModule, data: Any = None, ckpt_path: Any = None, **kwargs: Any) -> Any:
    """Fit and return the trainer."""
    run = trainer(**kwargs)
    run.fit(module, batches() if data is None else data, ckpt_path=ckpt_path)
    return run


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def assert_same_weights(a: nn.Module, b: nn.Module, **tolerance: float) -> None:
    assert_close(weights(a), weights(b), **tolerance)


def moved(module: nn.Module, start: nn.Module) -> bool:
    """Whether training has changed the weights: two runs that do nothing are equal, too."""
    pairs = zip(module.parameters(), start.parameters(), strict=True)
    return any(not torch.equal(a.float(), b.float()) for a, b in pairs)


def hand_written(
    module: Regression,
    backward: Callable[[Any], Any],
    data: Any = None,
    epochs: int = 2,
) -> Regression:
    """What a fit does, as a loop in plain PyTorch; ``backward`` gets the losses."""
    optimizer = module.configure_optimizers()
    for _ in range(epochs):
        for batch in batches() if data is None else data:
            optimizer.zero_grad()
            output = module.in_form(module.errors(batch))
            backward(output["loss"] if isinstance(output, dict) else output)
            optimizer.step()
    return module
