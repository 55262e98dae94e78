"""The surfaces for ``import lightning.pytorch``."""

from typing import TYPE_CHECKING, Any

from lightning_jd.surfaces._build import build

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


globals().update(build("lightning.pytorch", __name__))
