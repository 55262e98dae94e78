"""Models that others wrote, as users train them: small, randomly initialised, never downloaded."""

from examples.lab.gallery._case import GalleryCase, Specimen
from examples.lab.gallery._registry import GALLERY

__all__ = ["GALLERY", "GalleryCase", "Specimen"]
