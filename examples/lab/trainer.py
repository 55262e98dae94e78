"""A Trainer with nothing but the training in it."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from lightning.pytorch import Callback, Trainer

from examples.lab.device import here

_ACCELERATORS = {
    "cuda": "gpu"
}  # what Lightning calls a kind of device, where it has a name of its own


def bare_trainer(epochs: int, callbacks: Sequence[Callback]) -> Trainer:
    """A Trainer on the device of the measurement that writes nothing and prints nothing."""
    device = here()
    return Trainer(
        accelerator=_ACCELERATORS.get(device.type, device.type),
        devices=1 if device.index is None else [device.index],
        max_epochs=epochs,
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Lightning tells about devices and workers at every start: silence it for many short fits."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
