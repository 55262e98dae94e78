"""The documented table is the claims, and the claims are those of the paper."""

import doctest
import re
from pathlib import Path

import pytest

from lightning_jd.aggregators import Property, _registry, available
from lightning_jd.aggregators._table import properties_table

DOCS = Path(__file__).parents[2] / "docs" / "aggregators"

# Table 1 of the paper: non-conflicting, linear under scaling, weighted.
TABLE_1 = {
    "mean": (False, True, True),
    "mgda": (True, False, True),
    "dualproj": (True, False, True),
    "pcgrad": (False, True, True),
    "graddrop": (False, False, False),
    "imtlg": (False, False, True),
    "cagrad": (False, False, True),
    "rgw": (False, True, True),
    "nashmtl": (True, False, True),
    "alignedmtl": (False, False, True),
    "upgrad": (True, True, True),
}


@pytest.mark.parametrize("name", TABLE_1)
def test_the_claims_are_those_of_the_paper(name: str) -> None:
    claims = available()[name].properties
    columns = (Property.NON_CONFLICTING, Property.LINEAR_UNDER_SCALING, Property.WEIGHTED)
    assert tuple(prop in claims for prop in columns) == TABLE_1[name]


def test_the_documented_table_is_the_generated_one() -> None:
    page = (DOCS / "index.md").read_text()
    documented = "\n".join(re.findall(r"^\|.*\|$", page, flags=re.MULTILINE))
    remedy = "replace it by what `python -m lightning_jd.aggregators._table` prints"
    assert documented == properties_table(), remedy


def test_every_line_of_the_table_links_to_a_page() -> None:
    pages = re.findall(r"\]\((\w+\.md)\)", properties_table())
    assert len(pages) >= 13
    assert all((DOCS / page).is_file() for page in pages)


def test_the_code_of_the_page_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_registry, "_CLASSES", available())  # forget what the page registers
    failed, attempted = doctest.testfile(str(DOCS / "index.md"), module_relative=False)
    assert attempted >= 7
    assert not failed
