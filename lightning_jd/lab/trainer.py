"""A Trainer with nothing but the training in it."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from lightning.pytorch import Callback, Trainer


def bare_trainer(epochs: int, callbacks: Sequence[Callback]) -> Trainer:
    """A Trainer on the CPU that writes nothing and prints nothing."""
    return Trainer(
        accelerator="cpu",
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
