"""The strategy names ``jd``, ``jd_ddp``, ...: known to Lightning as soon as both are imported.

Lightning has no entry point for strategies, so ``import lightning_jd`` has to register the names.
It must not import Lightning for that (seconds), and the user may import the two in either order.
So the names are registered at once where Lightning is already there, and otherwise right after its
import. Only the names: the strategies themselves are imported when a Trainer asks for one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from typing_extensions import override

#: The module with the registry of each of Lightning's two packages, and our classes for it.
_SURFACES = {
    "lightning.pytorch.strategies": "lightning_jd.surfaces.lightning_pytorch",
    "pytorch_lightning.strategies": "lightning_jd.surfaces.pytorch_lightning",
}
#: Name to class and arguments; the start methods are those of Lightning's own ``ddp_...`` names.
_STRATEGIES: dict[str, tuple[str, dict[str, str]]] = {
    "jd": ("JDStrategy", {}),
    "jd_ddp": ("JDDDPStrategy", {"start_method": "popen"}),
    "jd_ddp_spawn": ("JDDDPStrategy", {"start_method": "spawn"}),
    "jd_ddp_fork": ("JDDDPStrategy", {"start_method": "fork"}),
    "jd_ddp_notebook": ("JDDDPStrategy", {"start_method": "fork"}),
}


def register_strategies() -> None:
    """Make the names of the strategies known, now or as soon as Lightning is imported.

    Example:
        >>> register_strategies()  # a second call changes nothing
        >>> from lightning.pytorch.strategies import StrategyRegistry
        >>> "jd" in StrategyRegistry and "jd_ddp" in StrategyRegistry
        True
    """
    for name in _SURFACES:
        module = sys.modules.get(name)
        if module is not None and hasattr(module, "StrategyRegistry"):
            _register(module)
    if not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())


def _register(strategies: ModuleType) -> None:
    for name, (cls, arguments) in _STRATEGIES.items():
        strategies.StrategyRegistry.register(
            name,
            partial(_build, _SURFACES[strategies.__name__], cls),
            description=f"Jacobian descent: lightning_jd.{cls}",
            override=True,
            **arguments,
        )


def _build(surface: str, cls: str, **arguments: Any) -> Any:
    return getattr(import_module(surface), cls)(**arguments)


class _AfterImport(MetaPathFinder):
    """Finds nothing itself: lets the other finders work, then has the names registered."""

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _SURFACES:
            return None
        for finder in sys.meta_path:
            if isinstance(finder, _AfterImport):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Registering(spec.loader)
                return spec
        return None


class _Registering(Loader):
    """The loader it is given, plus the registration after the module has been executed."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    @override
    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    @override
    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        # Tools that ask a module for its source expect the loader of that source.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        _register(module)
