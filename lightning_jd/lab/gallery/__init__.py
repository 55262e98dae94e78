"""Models that others wrote, as users train them: small, randomly initialised, never downloaded."""

from lightning_jd.lab.gallery._case import GalleryCase, Specimen
from lightning_jd.lab.gallery._registry import GALLERY

__all__ = ["GALLERY", "GalleryCase", "Specimen"]
