"""Pages are reachable, and speak of what exists."""

import re

from lightning_jd import aggregators
from lightning_jd.aggregators._table import _of_the_package, _paper
from tests.docs.blocks import PAGES, ROOT

DOCS = ROOT / "docs"
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(?:#[^)]*)?\)")


CODE = re.compile(r"^```.*?^```$", flags=re.DOTALL | re.MULTILINE)
STALE = re.compile(r".{40}\b(?:out of date|outdated|out-of-date|no longer true)\b")


def test_links_to_files_are_not_broken() -> None:
    broken = [
        f"{page}: {link}"
        for page, path in PAGES.items()
        for link in LINK.findall(CODE.sub("", path.read_text("utf-8")))
        if not (path.parent / link).exists()
    ]
    assert not broken


def test_no_page_publishes_a_number_that_it_calls_out_of_date() -> None:
    texts = {page: " ".join(path.read_text("utf-8").split()) for page, path in PAGES.items()}
    stale = {page: found for page, text in texts.items() if (found := STALE.findall(text.lower()))}
    assert not stale, "measure it again, or remove it"


def test_every_example_is_listed() -> None:
    page = (DOCS / "guides" / "index.md").read_text(encoding="utf-8")
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
    assert (int(counted[1]), counted[2]) == (every[0], "fourteen")
    assert every[1] == 14


def test_the_readme_lists_the_methods_with_their_years() -> None:
    table = (ROOT / "README.md").read_text("utf-8").split("| they | methods |")[1].split("\n\n")[0]
    listed = re.findall(r"(?<=[|,] )[A-Z]\w+(?: \d{4})?(?=[ ,])", table)
    expected = []
    for cls in _of_the_package(aggregators.available()):
        year = _paper(cls)[-4:]
        expected.append(f"{cls.__name__} {year}" if year.isdigit() else cls.__name__)
    assert sorted(listed) == sorted(expected)
