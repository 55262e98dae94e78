"""``torch.compile``: graphs that are differentiated several times, and eager runs of instances."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import nn

from lightning_jd.core import LISTED, is_sharded
from lightning_jd.engines import Objectives, Slow, holds_compiled
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


class EagerInstances:
    """Decides from what it has seen whether the next ``training_step`` runs eagerly.

    A module of which a part is compiled runs eagerly until its first losses are known: to compile
    it for nothing may take a minute. Functions that are compiled elsewhere show in the graph of the
    first losses.

    Args:
        announce: Called once, with a line that says what was done.
        always: Also for tasks: a scalar whose sum was compiled has no terms to be seen.
    """

    def __init__(self, announce: Callable[[str], object], *, always: bool = False) -> None:
        self._always = always
        self._announce: Callable[[str], object] | None = announce
        self._compiled: bool | None = None  # not known
        self._looked = False
        self._listed = True  # until the losses tell

    def around(self, module: nn.Module) -> AbstractContextManager[object]:
        """The context for ``training_step`` of a module."""
        if self._compiled is None:
            # Parameters in pieces take a pass per row in any case.
            self._looked = is_sharded(list(module.named_parameters()))
            self._compiled = not self._looked and _has_compiled_parts(module)
        # The import of the compiler takes seconds: it happens only where there is one in use.
        if (
            self._compiled
            and (self._listed or self._always)
            and hasattr(torch.compiler, "set_stance")
        ):
            stance: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
            return stance
        return nullcontext()

    def look(self, objectives: Objectives) -> None:
        """Learn what the losses are, and whether compiled functions are in their graph."""
        self._listed = objectives.kind in LISTED
        if not self._listed or objectives.m == 0:
            return
        if not self._compiled and not self._looked:
            self._looked = True
            self._compiled = holds_compiled(objectives)
        if self._compiled and self._announce is not None:
            self._announce(
                "Jacobian descent runs compiled modules eagerly in `training_step`: compiled code "
                f"would need one backward pass for each of the {objectives.m} objectives, eager "
                "code about one for all. Everything else stays compiled."
            )
            self._announce = None

    def still_slow(self, slow: dict[str, Slow]) -> dict[str, Slow]:
        """What is slow for another reason than compiled functions that will run eagerly."""
        if not hasattr(torch.compiler, "set_stance"):
            return slow
        return {n: why for n, why in slow.items() if not why.operation.startswith("Compiled")}


def _has_compiled_parts(module: Any) -> bool:
    """Whether a module, or a part of it, was given to ``torch.compile`` (or ``.compile()``)."""
    if getattr(module, "_compiler_ctx", None) is not None:  # Lightning keeps it there
        return True
    return any(
        getattr(part, "_compiled_call_impl", None) is not None or hasattr(part, "_orig_mod")
        for part in module.modules()
    )
