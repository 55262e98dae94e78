"""What a Trainer can do, as data: each entry must not change what Jacobian descent computes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch import callbacks
from lightning.pytorch.callbacks import GradientAccumulationScheduler, StochasticWeightAveraging
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.helpers.lightning import ManualRegression, Regression


class Scheduled(Regression):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.8)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


class Checkpointed(Regression):
    def errors(self, batch: list[Tensor]) -> Tensor:
        x, y = batch
        return (checkpoint(self.net, x, use_reentrant=False) - y).square()


class Compiled(Regression):
    """A module of which a part is compiled; the other way is `torch.compile(module)`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        torch.compiler.reset()  # what plain training has compiled cannot be used
        self.run = [torch.compile(self.net, backend="aot_eager")]

    def errors(self, batch: list[Tensor]) -> Tensor:
        x, y = batch
        return (self.run[0](x) - y).square()


class Frozen(Regression):
    """The first layer is frozen, and one parameter is never used."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.net[0].requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(3))


class Hooked(Regression):
    """Gradients at the output of the first layer are changed by a hook."""

    def hook(self, gradient: Tensor) -> Tensor:
        return 3 * gradient

    def errors(self, batch: list[Tensor]) -> Tensor:
        x, y = batch
        h = self.net[0](x)
        if h.requires_grad:
            h.register_hook(self.hook)
        return (self.net[1:](h) - y).square()


class Clipped(Hooked):
    """The same with a hook that is not linear."""

    def hook(self, gradient: Tensor) -> Tensor:
        return gradient.clamp(-0.01, 0.01)


class WithHooks(Regression):
    """A module that overrides the hooks around the backward pass."""

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        (2 * loss).backward(*args, **kwargs)

    def on_after_backward(self) -> None:
        for parameter in self.parameters():
            parameter.grad.clamp_(-0.05, 0.05)

    def configure_gradient_clipping(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        self.clip_gradients(optimizer, gradient_clip_val=0.1, gradient_clip_algorithm="norm")


@dataclass(frozen=True)
class Feature:
    """Arguments of the Trainer and the module, made anew for every run.

    Args:
        trainer: Makes the arguments of the Trainer.
        module: Makes the module in a given form of losses.
        tolerance: How close the weights are after training; ``{}`` for that of the dtype.
    """

    trainer: Callable[[], dict[str, Any]] = dict
    module: Callable[..., Regression] = Regression
    tolerance: dict[str, float] = field(default_factory=dict)


def _scaler(**arguments: float) -> MixedPrecision:
    return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", **arguments))


def _safe() -> MixedPrecision:
    return _scaler(init_scale=128.0)


def _overflowing() -> MixedPrecision:
    """One step overflows for certain; the scale after it is small enough for all others."""
    return _scaler(init_scale=2.0**40, backoff_factor=2.0**-33)


def _with(optimizer: type, **arguments: Any) -> Callable[..., Regression]:
    def make(form: Any) -> Regression:
        return Regression(form, optimizer, **arguments)

    return make


def _convolutional() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Unflatten(1, (1, 5)),
            nn.Conv1d(1, 4, 3, padding=1),
            nn.GroupNorm(2, 4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(20, 3),
        )


BF16 = {"rtol": 2e-2, "atol": 2e-3}
FP16 = {"rtol": 2e-3, "atol": 5e-4}
FEATURES = {
    "nothing": Feature(),
    "clip by norm": Feature(lambda: {"gradient_clip_val": 0.1}),
    "clip by value": Feature(
        lambda: {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}
    ),
    "accumulation": Feature(lambda: {"accumulate_grad_batches": 2}),
    "accumulation, last window shorter": Feature(lambda: {"accumulate_grad_batches": 4}),
    "accumulation by schedule": Feature(
        lambda: {"callbacks": [GradientAccumulationScheduler({0: 1, 1: 3})]}
    ),
    "float64": Feature(lambda: {"precision": "64-true"}),
    "bf16-mixed": Feature(lambda: {"precision": "bf16-mixed"}, tolerance=BF16),
    "bf16-true": Feature(lambda: {"precision": "bf16-true"}, tolerance=BF16),
    "16-true": Feature(lambda: {"precision": "16-true"}, tolerance=FP16),
    "16-mixed": Feature(lambda: {"plugins": [_safe()]}, tolerance=FP16),
    "16-mixed with overflow": Feature(lambda: {"plugins": [_overflowing()]}, tolerance=FP16),
    "16-mixed, clipped and accumulated": Feature(
        lambda: {
            "plugins": [_safe()],
            "gradient_clip_val": 0.1,
            "accumulate_grad_batches": 2,
        },
        tolerance=FP16,
    ),
    "scheduler and AdamW": Feature(module=Scheduled),
    "momentum": Feature(module=_with(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.01)),
    "LBFGS": Feature(  # curvature from differences of gradients magnifies rounding errors
        module=_with(torch.optim.LBFGS, lr=0.1, max_iter=4), tolerance={"rtol": 1e-3, "atol": 1e-4}
    ),
    "stochastic weight averaging": Feature(
        lambda: {
            "callbacks": [StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1)],
            "max_epochs": 3,
        }
    ),
    "anomaly detection": Feature(lambda: {"detect_anomaly": True}),
    "profiler": Feature(lambda: {"profiler": "simple"}),
    "overfit batches": Feature(lambda: {"overfit_batches": 2}),
    "barebones": Feature(lambda: {"barebones": True}),
    "deterministic": Feature(lambda: {"deterministic": True}),
    "activation checkpointing": Feature(module=Checkpointed),
    "compiled part": Feature(module=Compiled),
    "frozen and unused parameters": Feature(module=Frozen),
    "overridden hooks": Feature(module=WithHooks),
    "hooks that scale gradients": Feature(module=Hooked),
    "hooks that clip gradients": Feature(module=Clipped),
    "manual optimization": Feature(module=ManualRegression),
    "manual optimization, bf16-mixed": Feature(
        lambda: {"precision": "bf16-mixed"}, ManualRegression, BF16
    ),
    "manual optimization, 16-mixed": Feature(
        lambda: {"plugins": [_safe()]}, ManualRegression, FP16
    ),
    "manual optimization, 16-true": Feature(
        lambda: {"precision": "16-true"}, ManualRegression, FP16
    ),
    "convolutions and normalisation": Feature(
        module=lambda form: Regression(form, net=_convolutional())
    ),
}

if hasattr(callbacks, "EMAWeightAveraging"):  # Lightning 2.6 and later
    FEATURES["exponential moving average"] = Feature(
        lambda: {"callbacks": [callbacks.EMAWeightAveraging(decay=0.9)]}
    )
