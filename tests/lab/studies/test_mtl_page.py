"""docs/mtl.md is what docs/mtl.py writes from the saved results."""

from tests.lab.studies.test_paper_page import DOCS, script_of


def test_the_page_is_written_by_its_script() -> None:
    assert (DOCS / "mtl.md").read_text(encoding="utf-8") == script_of("mtl").page()


def test_every_figure_of_the_page_is_there() -> None:
    page = (DOCS / "mtl.md").read_text(encoding="utf-8")
    figures = [part.partition(")")[0] for part in page.split("](figures/")[1:]]
    assert all((DOCS / "figures" / name).is_file() for name in figures)
