"""All models of the gallery by name."""

from examples.lab.gallery import _graphs, _images, _language, _science, _series, _tables
from examples.lab.gallery._case import GalleryCase

_FILES = (_language, _images, _graphs, _series, _science, _tables)

#: Name to case, in the order of the table.
GALLERY: dict[str, GalleryCase] = {case.name: case for file in _FILES for case in file.cases()}
