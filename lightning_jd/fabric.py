"""Jacobian descent with Lightning Fabric: :func:`backward` replaces ``fabric.backward(loss)``."""

from lightning_jd.surfaces.fabric import backward

__all__ = ["backward"]
