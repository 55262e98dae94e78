"""What ``torch.compile`` has to know about us: one forward pass is differentiated several times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lightning_jd.errors import GraphError


@contextmanager
def reusable_compiled_graphs() -> Iterator[None]:
    """Have functions that are compiled meanwhile keep what their backward pass reads.

    Otherwise, since torch 2.6, the backward pass may overwrite these tensors, and run only once.
    """
    config = getattr(getattr(torch, "_functorch", None), "config", None)
    if config is None or not hasattr(config, "donated_buffer"):
        yield
        return
    with config.patch(donated_buffer=False):
        yield


@contextmanager
def explained_compile_errors() -> Iterator[None]:
    """Say what to do if a function was compiled before, for plain training.

    Raises:
        GraphError: In the place of the error of torch.
    """
    try:
        yield
    except RuntimeError as error:
        if "donated buffer" not in str(error):
            raise
        raise GraphError(
            "A compiled function must keep its saved tensors to be differentiated several times, "
            "got one that was compiled for plain training in this process. Call "
            "`torch.compiler.reset()` before `fit`."
        ) from error
