"""The surfaces as type checkers see them: with the base classes of ``lightning.pytorch``.

At run time, :mod:`lightning_jd.surfaces._build` derives them from the package that is in use.
"""

from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy

from lightning_jd.surfaces import callback, report_callback, strategies
from lightning_jd.surfaces.module import JDModuleMixin

__all__ = ["JDDDPStrategy", "JDModuleMixin", "JDReport", "JDStrategy", "JacobianDescent"]


class JacobianDescent(callback.JacobianDescent, Callback):
    """See :class:`lightning_jd.surfaces.callback.JacobianDescent`."""


class JDReport(report_callback.JDReport, Callback):
    """See :class:`lightning_jd.surfaces.report_callback.JDReport`."""


class JDStrategy(strategies.JDStrategy, SingleDeviceStrategy):
    """See :class:`lightning_jd.surfaces.strategies.JDStrategy`."""


class JDDDPStrategy(strategies.JDDDPStrategy, DDPStrategy):
    """See :class:`lightning_jd.surfaces.strategies.JDDDPStrategy`."""
