"""Our callback, report and strategies on top of the base classes of one Lightning package."""

from __future__ import annotations

from importlib import import_module
from types import new_class
from typing import Any

from lightning_jd.surfaces._settings import with_arguments
from lightning_jd.surfaces.callback import JacobianDescent
from lightning_jd.surfaces.module import JDModuleMixin
from lightning_jd.surfaces.report_callback import JDReport
from lightning_jd.surfaces.strategies import STRATEGIES


def build(package: str, module: str) -> dict[str, type]:
    """Derive every surface from its class here and its base class in a Lightning package.

    Args:
        package: ``"lightning.pytorch"`` or ``"pytorch_lightning"``.
        module: The module that holds the classes, where pickle looks for them.

    Returns:
        The classes by name.
    """
    rank_zero_info = import_module(f"{package}.utilities").rank_zero_info
    classes: dict[str, type] = {"JDModuleMixin": JDModuleMixin}
    body: dict[str, Any] = {"__module__": module, "_inform": staticmethod(rank_zero_info)}

    def derive(ours: Any) -> type:
        place, _, name = ours.lightning_base.rpartition(".")
        theirs = getattr(import_module(f"{package}.{place}"), name)
        doc = with_arguments(ours) if ours is JacobianDescent else ours.__doc__
        return new_class(
            ours.__name__, (ours, theirs), exec_body=lambda new: new.update(body, __doc__=doc)
        )

    body["_callback_class"] = classes["JacobianDescent"] = derive(JacobianDescent)
    others: tuple[type, ...] = (JDReport, *STRATEGIES)
    for ours in others:
        classes[ours.__name__] = derive(ours)
    return classes
