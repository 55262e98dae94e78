"""Jacobian descent in Lightning: the callback, the strategies, the module flag, Fabric.

Importing Lightning takes seconds, so classes are built on first use, on top of the Lightning
package that is in use (:mod:`lightning_jd.surfaces._namespace`).
"""

from typing import Any

from lightning_jd.surfaces._namespace import surfaces_in_use


def __getattr__(name: str) -> Any:
    if not name[:1].isupper():  # a submodule, or a mistake
        raise AttributeError(f"module 'lightning_jd.surfaces' has no attribute {name!r}")
    return getattr(surfaces_in_use(), name)
