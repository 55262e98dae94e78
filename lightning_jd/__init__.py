"""Jacobian descent for PyTorch Lightning: train with a vector of losses instead of a scalar.

For plain PyTorch, use :func:`backward`, :func:`gramian` and :func:`jacobian`. For Lightning, pass
:class:`JacobianDescent` to the Trainer. The Lightning classes are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lightning_jd._registration import register_strategies
from lightning_jd.aggregators import available, register, resolve
from lightning_jd.core import Accumulator, backward
from lightning_jd.engines import explain, gramian, jacobian

if TYPE_CHECKING:
    from lightning_jd.surfaces.callback import JacobianDescent
    from lightning_jd.surfaces.module import JDModuleMixin
    from lightning_jd.surfaces.report_callback import JDReport
    from lightning_jd.surfaces.strategies import JDDDPStrategy, JDStrategy

__all__ = [
    "Accumulator",
    "JDDDPStrategy",
    "JDModuleMixin",
    "JDReport",
    "JDStrategy",
    "JacobianDescent",
    "available",
    "backward",
    "explain",
    "gramian",
    "jacobian",
    "register",
    "resolve",
]
__version__ = "0.2.0"

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


def __getattr__(name: str) -> Any:
    if name in __all__:  # and not imported above: it needs Lightning
        return getattr(import_module("lightning_jd.surfaces"), name)
    if name == "fabric":
        return import_module("lightning_jd.surfaces.fabric")
    raise AttributeError(f"module 'lightning_jd' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "fabric"]
