"""The documented table is the claims, and the claims are those of the paper."""

import re
from inspect import getdoc
from pathlib import Path

import pytest

from lightning_jd import aggregators
from lightning_jd.aggregators import Property, available
from lightning_jd.aggregators._table import (
    balancers_table,
    methods_table,
    properties_table,
    tables,
)

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
    for table in [*tables().split("\n\n"), properties_table(), balancers_table()]:
        assert f"\n\n{table}\n\n" in page, remedy


def test_every_method_has_a_line_with_its_paper() -> None:
    methods = [cls for cls in available().values() if cls.__name__ in aggregators.__all__]
    assert len(methods) >= 49
    for cls in methods:
        (line,) = methods_table([cls]).splitlines()[2:]
        assert line in tables()
        _, _, _, summary, paper, _ = (cell.strip() for cell in line.split("|"))
        assert len(summary) > 20
        assert ("References:" in (getdoc(cls) or "")) == bool(
            re.search(r", .+ (19|20)\d\d$", paper)
        )
