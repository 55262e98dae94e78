"""The documented table is the claims, and the claims are those of the paper."""

import re
from inspect import signature
from pathlib import Path

import pytest

from lightning_jd import aggregators
from lightning_jd.aggregators import Property, available
from lightning_jd.aggregators._table import balancers_table, properties_table

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
    claims = available("aggregators")[name].properties
    columns = (Property.NON_CONFLICTING, Property.LINEAR_UNDER_SCALING, Property.WEIGHTED)
    assert tuple(prop in claims for prop in columns) == TABLE_1[name]


def test_the_documented_tables_are_the_generated_ones() -> None:
    page = (DOCS / "index.md").read_text()
    remedy = "replace it by what `python -m lightning_jd.aggregators._table` prints"
    assert f"\n\n{properties_table()}\n\n" in page, remedy
    assert f"\n\n{balancers_table()}\n\n" in page, remedy


def test_every_method_has_a_page_that_is_linked() -> None:
    pages = re.findall(r"\]\((\w+)\.md\) \|", properties_table() + balancers_table())
    assert len(pages) >= 36
    assert all((DOCS / f"{page}.md").is_file() for page in pages)


def test_every_method_has_a_cost() -> None:
    page = (DOCS / "index.md").read_text().partition("<!-- costs -->")[2]
    for name, cls in available().items():
        if cls.__name__ in aggregators.__all__:
            assert f"| `{name}` |" in page, name


def test_a_page_shows_the_arguments_of_its_class() -> None:
    for name, cls in available().items():
        if cls.__name__ not in aggregators.__all__:
            continue
        page = (DOCS / f"{name}.md").read_text()
        code = page.partition("```python")[2].partition("```")[0]
        call = re.search(rf"{cls.__name__}\((.*?)\)(\s|$)", code, flags=re.DOTALL)
        assert call, name
        shown = re.findall(r"(\w+)=", call.group(1))
        assert set(shown) <= set(signature(cls).parameters), name
