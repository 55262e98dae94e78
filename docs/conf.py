"""Sphinx: Markdown pages, API from docstrings, warnings are errors (`sphinx-build -W`)."""

import lightning_jd

project = "lightning_jd"
author = "the lightning_jd team"
release = version = lightning_jd.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "furo"
autodoc_member_order = "bysource"
