"""The code of the two pages about engines runs, in the order in which it is read."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightning_jd.engines.tape import unregister_flow, unregister_rule

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(autouse=True)
def _no_rule_left_behind() -> Iterator[None]:
    yield
    unregister_rule("TrilinearBackward0", 1)
    unregister_rule("MatrixBackward", 1)
    unregister_flow("MatrixBackward")


@pytest.mark.parametrize("page", ["engines", "write_a_rule"])
def test_the_page_is_true(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (DOCS / f"{page}.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 3
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    shown = re.search(r"```text\n(parameter .*?)```", text, re.DOTALL)
    assert shown is not None
    assert shown[1] in capsys.readouterr().out  # the table of the page is the one that is printed
