"""What ``torch.compile`` has to know about us: one forward pass is differentiated several times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

from lightning_jd.errors import GraphError


@contextmanager
def reusable_compiled_graphs() -> Iterator[None]:
    """Have functions that are compiled meanwhile keep what their backward pass reads.

    Otherwise, since torch 2.6, the backward pass may overwrite these tensors, and run only once.
    """
    config = _config()
    if config is None:
        yield
        return
    with config.patch(donated_buffer=False):
        yield


@cache
def _config() -> Any:
    """The settings of the compiler, where they have this one."""
    try:
        config = import_module("torch._functorch.config")
    except ImportError:
        return None
    return config if hasattr(config, "donated_buffer") else None


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
            "Jacobian descent differentiates a compiled function several times, but this one was "
            "compiled for plain training earlier in this process. Call `torch.compiler.reset()` "
            "before `fit`."
        ) from error
