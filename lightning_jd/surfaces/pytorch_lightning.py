"""The surfaces for ``import pytorch_lightning``."""

from pytorch_lightning.callbacks import Callback
from pytorch_lightning.strategies import DDPStrategy, SingleDeviceStrategy
from pytorch_lightning.utilities import rank_zero_info

from lightning_jd.surfaces.callback import DescentCallback
from lightning_jd.surfaces.module import JDModuleMixin
from lightning_jd.surfaces.report_callback import ReportCallback
from lightning_jd.surfaces.strategies import DescentStrategy, OnOneDevice

__all__ = ["JDDDPStrategy", "JDModuleMixin", "JDReport", "JDStrategy", "JacobianDescent"]


class JacobianDescent(DescentCallback, Callback):  # noqa: D101
    __doc__ = DescentCallback.__doc__
    _inform = staticmethod(rank_zero_info)


class JDReport(ReportCallback, Callback):  # noqa: D101
    __doc__ = ReportCallback.__doc__
    _inform = staticmethod(rank_zero_info)


class JDStrategy(DescentStrategy, OnOneDevice, SingleDeviceStrategy):
    """Jacobian descent on one device: ``Trainer(strategy="jd")``.

    Takes the arguments of :class:`~lightning_jd.JacobianDescent`, and then those of Lightning's
    ``SingleDeviceStrategy`` by name.
    """

    strategy_name = "jd"
    _callback_class = JacobianDescent


class JDDDPStrategy(DescentStrategy, DDPStrategy):
    """Jacobian descent on several devices: ``Trainer(strategy="jd_ddp")``.

    Takes the arguments of :class:`~lightning_jd.JacobianDescent`, and then those of Lightning's
    ``DDPStrategy`` by name.
    """

    strategy_name = "jd_ddp"
    _callback_class = JacobianDescent
