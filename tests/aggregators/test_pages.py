"""The page of a method shows a picture that the method itself has drawn.

That its code runs alone is tested in `tests/docs`.
"""

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from lightning_jd.aggregators import available

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {page.stem: page.read_text() for page in sorted((DOCS / "aggregators").glob("*.md"))}
METHODS = list(available())


def test_each_page_shows_its_picture() -> None:
    shown = {name: re.findall(r"!\[.+?\]\((.+?)\)", PAGES[name]) for name in METHODS}
    assert {name: first for name, (first, *_) in shown.items()} == {
        name: f"../figures/methods/{name}.png" for name in METHODS
    }
    linked = {DOCS / "aggregators" / each for pictures in shown.values() for each in pictures}
    assert [path for path in linked if not path.is_file()] == []


@pytest.mark.slow
def test_every_picture_can_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    spec = spec_from_file_location("methods_figures", DOCS / "figures" / "methods.py")
    assert spec is not None
    assert spec.loader is not None
    figures = module_from_spec(spec)
    spec.loader.exec_module(figures)
    for name in METHODS:
        assert figures.draw(name, tmp_path).stat().st_size > 5000
