"""Jacobian descent in Lightning: the callback, the strategies, the flag on the module, Fabric.

Nothing here is imported before it is used, because Lightning takes seconds to import. The classes
are those for the Lightning package that is in use, see :mod:`lightning_jd.surfaces._namespace`.
"""

from typing import TYPE_CHECKING, Any

from lightning_jd.surfaces._namespace import surfaces_in_use

if TYPE_CHECKING:
    from lightning_jd.surfaces.lightning_pytorch import (
        JacobianDescent,
        JDDDPStrategy,
        JDModuleMixin,
        JDReport,
        JDStrategy,
    )

__all__ = ["JDDDPStrategy", "JDModuleMixin", "JDReport", "JDStrategy", "JacobianDescent"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'lightning_jd.surfaces' has no attribute {name!r}")
    return getattr(surfaces_in_use(), name)
