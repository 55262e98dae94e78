"""Pages are reachable, and speak of what exists."""

import re

import pytest

from lightning_jd import aggregators
from tests.docs.blocks import PAGES, ROOT

DOCS = ROOT / "docs"
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES)
def test_links_to_files_are_not_broken(page: str) -> None:
    text = re.sub(
        r"^```.*?^```$", "", PAGES[page].read_text("utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    broken = [link for link in LINK.findall(text) if not (PAGES[page].parent / link).exists()]
    assert not broken


@pytest.mark.parametrize("page", PAGES)
def test_no_page_publishes_a_number_that_it_calls_out_of_date(page: str) -> None:
    text = " ".join(PAGES[page].read_text("utf-8").split()).lower()
    stale = re.findall(r".{40}\b(?:out of date|outdated|out-of-date|no longer true)\b", text)
    assert not stale, "measure it again, or remove it"


def test_every_example_is_listed() -> None:
    page = (DOCS / "howto" / "index.md").read_text(encoding="utf-8")
    assert [
        file.name for file in (ROOT / "examples").glob("[!_]*.*") if file.name not in page
    ] == []


def test_the_glossary_has_its_words() -> None:
    page = (DOCS / "glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^([\w-]+(?: [\w-]+)?)\n: ", page, flags=re.MULTILINE)
    asked = "objective row instance task rank Gramian cotangent owner contribution".split()
    assert len(words) >= 30
    assert set(asked) <= set(words)
    assert len(words) == len(set(words))


def test_the_readme_counts_the_methods() -> None:
    counted = re.search(r"(\d+) aggregators and (\w+) balancers", (ROOT / "README.md").read_text())
    assert counted is not None
    every = [
        sum(cls.__name__ in aggregators.__all__ for cls in methods.values())
        for methods in (aggregators.available("aggregators"), aggregators.available("balancers"))
    ]
    assert (int(counted[1]), counted[2]) == (every[0], "nine")
    assert every[1] == 9
