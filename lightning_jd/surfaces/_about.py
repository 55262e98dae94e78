"""What was run, in words, for the report."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

import torch

from lightning_jd import __version__


def about(trainer: Any, module: Any) -> dict[str, str]:
    """Module, parameters, optimizers, batch size, devices, versions, seed and date of a run."""
    loader = trainer.train_dataloader
    seed = os.environ.get("PL_GLOBAL_SEED")
    lightning = type(trainer).__module__.partition(".")[0]
    found = {
        "module": type(module).__name__,
        "parameters": f"{sum(p.numel() for p in module.parameters() if p.requires_grad):,}",
        "optimizer": ", ".join(map(_optimizer, trainer.optimizers)),
        "batch size": str(getattr(loader, "batch_size", None) or "unknown"),
        "devices": f"{trainer.world_size} x {trainer.strategy.root_device.type}",
        "precision": str(trainer.precision),
        "versions": f"lightning_jd {__version__}, torch {torch.__version__}, "
        f"{lightning} {_version(lightning)}",
        "seed": seed if seed is not None else "not set by seed_everything",
        "started": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
    }
    return {name: text for name, text in found.items() if text}


def _optimizer(optimizer: Any) -> str:
    rates = sorted({float(group["lr"]) for group in optimizer.param_groups if "lr" in group})
    return f"{type(optimizer).__name__} (lr {', '.join(f'{rate:g}' for rate in rates)})"


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package.replace("_", "-"))
    except PackageNotFoundError:
        return "unknown"
