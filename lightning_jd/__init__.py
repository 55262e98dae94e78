"""Jacobian descent for PyTorch Lightning: train with a vector of losses instead of a scalar.

For Lightning, pass :class:`JacobianDescent` to the Trainer. For plain PyTorch, use
:func:`backward`, :class:`Accumulator`, :func:`gramian`, :func:`jacobian`,
:func:`gradient_norms` and :func:`project`. Aggregators and
balancers are here, too. The Lightning classes are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lightning_jd import aggregators
from lightning_jd._registration import register_strategies
from lightning_jd.aggregators import *  # noqa: F403  # each is public here, too
from lightning_jd.core import Accumulator, backward
from lightning_jd.engines import (
    explain,
    gradient_norms,
    gramian,
    gramian_of_data,
    jacobian,
    project,
)

if TYPE_CHECKING:
    from lightning_jd import fabric
    from lightning_jd.surfaces._typed import (
        JacobianDescent,
        JDDDPStrategy,
        JDModuleMixin,
        JDReport,
        JDStrategy,
    )
    from lightning_jd.surfaces.comparison import compare
    from lightning_jd.surfaces.fronts import front

__all__ = [
    "Accumulator",
    "JDDDPStrategy",
    "JDModuleMixin",
    "JDReport",
    "JDStrategy",
    "JacobianDescent",
    "backward",
    "compare",
    "explain",
    "fabric",
    "front",
    "gradient_norms",
    "gramian",
    "gramian_of_data",
    "jacobian",
    "project",
]
__all__ += aggregators.__all__
__version__ = "0.3.0.dev0"

#: The short name of a strategy to its class and arguments. Start methods are those of Lightning's
#: own ``ddp_...`` names.
STRATEGY_NAMES: dict[str, tuple[str, dict[str, str]]] = {
    "jd": ("JDStrategy", {}),
    "jd_ddp": ("JDDDPStrategy", {"start_method": "popen"}),
    "jd_ddp_spawn": ("JDDDPStrategy", {"start_method": "spawn"}),
    "jd_ddp_fork": ("JDDDPStrategy", {"start_method": "fork"}),
    "jd_ddp_notebook": ("JDDDPStrategy", {"start_method": "fork"}),
}
register_strategies(STRATEGY_NAMES)
#: A function that needs Lightning to the file that has it.
_FUNCTIONS = {"compare": "comparison", "front": "fronts"}


def _lazy(name: str) -> Any:
    """What is imported on first use, because it needs Lightning."""
    if name == "fabric":
        return import_module("lightning_jd.fabric")
    if name in _FUNCTIONS:
        return getattr(import_module(f"lightning_jd.surfaces.{_FUNCTIONS[name]}"), name)
    if name in __all__:
        return getattr(import_module("lightning_jd.surfaces"), name)
    raise AttributeError(f"module 'lightning_jd' has no attribute {name!r}")


if not TYPE_CHECKING:  # a checker would accept every name
    __getattr__ = _lazy


def __dir__() -> list[str]:
    return list(__all__)
