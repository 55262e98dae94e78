"""The module flag: ``jacobian_descent = "upgrad"``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from typing_extensions import override

from lightning_jd.errors import SetupError
from lightning_jd.surfaces._namespace import surfaces_for
from lightning_jd.surfaces.callback import JacobianDescent

#: The LightningModule behind the mixin comes from either package.
_Module: Any = object
#: A module to its flag and the callback that was made for it. Kept outside of the module, which is
#: copied, pickled and saved by others.
_CALLBACKS: WeakKeyDictionary[Any, tuple[Any, Any]] = WeakKeyDictionary()


class JDModuleMixin(_Module):  # type: ignore[misc]  # of either package
    """Mixin for a LightningModule that selects Jacobian descent itself.

    List it before ``LightningModule`` in the base classes, and set the attribute
    ``jacobian_descent`` or override the method ``configure_jacobian_descent``. The value is an
    aggregator (``"upgrad"``) or a dict of arguments of :class:`~lightning_jd.JacobianDescent`, such
    as ``{"aggregator": "mgda", "params": "shared"}``. ``None`` is plain training.

    Example:
        >>> from lightning.pytorch import LightningModule
        >>> class Lit(JDModuleMixin, LightningModule):
        ...     jacobian_descent = "upgrad"
        >>> Lit().configure_callbacks()[0].settings.aggregator.name
        'upgrad'
    """

    jacobian_descent: Any = None

    def configure_jacobian_descent(self) -> Any:
        """The settings; override this if they depend on ``self``. Called at every fit."""
        return self.jacobian_descent

    @override
    def configure_callbacks(self) -> Sequence[Any]:
        """Add the callback to the callbacks of the module."""
        own = super().configure_callbacks()
        own = list(own) if isinstance(own, Sequence) else [own]
        callback = _callback_for(self)
        return own if callback is None else [*own, callback]


def _callback_for(module: Any) -> Any:
    """The callback that a module asks for with its flag; ``None`` if it does not.

    It is the same object at every fit, so that a run that is continued keeps its state, until the
    flag changes.

    Raises:
        SetupError: If the Trainer already has another one, which Lightning would silently replace.
    """
    spec = module.configure_jacobian_descent()
    if spec is None:
        return None
    known, callback = _CALLBACKS.get(module, (None, None))
    if callback is None or known != spec:
        callback = surfaces_for(module).JacobianDescent.of(spec, owner=module)
        _CALLBACKS[module] = (spec, callback)
    trainer = getattr(module, "_trainer", None)
    for other in [] if trainer is None else trainer.callbacks:
        if isinstance(other, JacobianDescent) and other is not callback and other._concerns(module):
            raise SetupError(
                "Jacobian descent must be configured once, got it from the Trainer and from the "
                f"flag `jacobian_descent` of {type(module).__name__}. Remove the flag, or the "
                "callback or strategy of the Trainer."
            )
    return callback
