"""Registers the short names of the strategies (``jd``, ``jd_ddp``, ...) with Lightning.

Lightning has no entry point for strategies, so ``import lightning_jd`` registers the names. It must
not import Lightning, which takes seconds, and users import the two in either order. So the names
are registered at once if Lightning is imported already, and right after its import otherwise. The
strategies themselves are imported when a Trainer asks for one.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
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
Names = Mapping[str, tuple[str, dict[str, str]]]


def register_strategies(names: Names) -> None:
    """Make short names of strategies known, now or as soon as Lightning is imported.

    Args:
        names: A short name to the name of a class in :mod:`lightning_jd.surfaces.strategies` and
            its arguments.

    Example:
        >>> import lightning_jd
        >>> from lightning.pytorch.strategies import StrategyRegistry
        >>> "jd" in StrategyRegistry and "jd_ddp" in StrategyRegistry
        True
    """
    for name in _SURFACES:
        module = sys.modules.get(name)
        if module is not None and hasattr(module, "StrategyRegistry"):
            _register(names, module)
    if not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport(names))


def _register(names: Names, strategies: ModuleType) -> None:
    for name, (cls, arguments) in names.items():
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
    """Finds nothing itself: wraps the loader that the other finders return, to register names."""

    def __init__(self, names: Names) -> None:
        self._names = names

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
                spec.loader = _Registering(spec.loader, self._names)
                return spec
        return None


class _Registering(Loader):
    """A loader that registers the names after the module has been executed."""

    def __init__(self, loader: Loader, names: Names) -> None:
        self._loader = loader
        self._names = names

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
        _register(self._names, module)
