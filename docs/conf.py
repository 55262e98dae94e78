"""Sphinx: Markdown pages, API from docstrings, warnings are errors (`sphinx-build -W`).

Nothing is loaded from other servers when a page is read: MathJax and its fonts are copied into the
site, and the theme uses the fonts of the reader.
"""

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import lightning_jd

sys.path.insert(0, str(Path(__file__).parent / "_site"))

project = "lightning_jd"
author = copyright = "the lightning_jd team"
release = version = lightning_jd.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "sphinx_design",
]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "_site", "**.ipynb"]
html_theme = "furo"
html_title = f"lightning_jd {release}"
#: The address of the repository: with it, pages link to their source and to an editor.
repository = ""
html_theme_options = {
    "navigation_with_keys": True,
    **(
        {
            "source_repository": repository,
            "source_branch": "main",
            "source_directory": "docs/",
            "top_of_page_buttons": ["view", "edit"],
        }
        if repository
        else {"top_of_page_buttons": []}
    ),
}
copybutton_exclude = ".linenos, .gp, .go"
smartquotes = False  # options begin with two dashes
pygments_dark_style = "github-dark"
html_static_path = ["_site/style.css", "_site/tables.js"]
html_css_files = ["style.css"]
html_js_files = ["tables.js"]
mathjax_path = "mathjax/tex-chtml.js"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # a method that only overrides is not repeated
napoleon_use_ivar = True  # attributes in the text of their class
autodoc_typehints_format = "short"
maximum_signature_line_length = 80


def setup(app: Any) -> None:
    app.connect("build-finished", copy_mathjax)
    app.connect("autodoc-process-signature", without_kwargs)


def without_kwargs(
    app: Any, what: str, name: str, obj: Any, options: Any, arguments: str | None, returns: Any
) -> tuple[str | None, Any] | None:
    """The callback shares its signature with the strategies, but takes nothing else."""
    if name != "lightning_jd.JacobianDescent" or arguments is None:
        return None
    return re.sub(r", \*\*kwargs: (?:~typing\.)?Any", "", arguments), returns


def copy_mathjax(app: Any, exception: Exception | None) -> None:
    """Only what a page with TeX loads: 3 of the 20 MB that the package holds."""
    spec = find_spec("sphinx-mathjax-offline")
    if exception is not None or spec is None or spec.origin is None:
        return
    source = Path(spec.origin).parent / "static" / "mathjax"
    unused = ignore_patterns(
        "a11y", "sre", "svg*", "mml*", "tex-mml*", "tex-svg*", "*full*", "node*"
    )
    target = Path(app.outdir) / "_static" / "mathjax"
    copytree(source, target, ignore=unused, dirs_exist_ok=True)
