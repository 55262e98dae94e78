"""Lightning comes as two packages, ``lightning.pytorch`` and ``pytorch_lightning``.

They have the same content but their own classes, and a Trainer of one refuses the strategies of the
other. Everything we do is written once, without a base class; the modules ``lightning_pytorch`` and
``pytorch_lightning`` beside this one put the base classes under it. This module finds out which of
the two is meant.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from lightning_jd.errors import MissingDependencyError

#: A package of Lightning to the module with our classes for it.
SURFACES = {
    "lightning.pytorch": "lightning_jd.surfaces.lightning_pytorch",
    "pytorch_lightning": "lightning_jd.surfaces.pytorch_lightning",
}


def surfaces_for(instance: object) -> ModuleType:
    """Our classes for the package that the class of ``instance`` is derived from."""
    for cls in type(instance).__mro__:
        for package, surfaces in SURFACES.items():
            if f"{cls.__module__}.".startswith(f"{package}."):
                return import_module(surfaces)
    return surfaces_in_use()


def surfaces_in_use() -> ModuleType:
    """Our classes for the package that is imported, or else for the one that is installed.

    If both are, ``lightning.pytorch`` is meant.

    Raises:
        MissingDependencyError: If none is installed.
    """
    for package, surfaces in SURFACES.items():
        if package in sys.modules:
            return import_module(surfaces)
    for package, surfaces in SURFACES.items():
        if find_spec(package.partition(".")[0]) is not None:
            return import_module(surfaces)
    raise MissingDependencyError(
        "The callback and the strategies need Lightning, which is not installed. "
        "Run: pip install lightning"
    )
