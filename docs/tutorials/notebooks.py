"""Write the notebooks of the tutorials from their pages: `python docs/tutorials/notebooks.py`."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent
PAGES = sorted(path.stem for path in FOLDER.glob("*.md"))
_CODE = re.compile(r"^```python\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\((?!http)[^)]+\)")


def notebook(page: str) -> str:
    """The page in cells. A block with a file name is a cell that writes this file."""
    text = (FOLDER / f"{page}.md").read_text(encoding="utf-8")
    content = {
        "cells": list(_cells(text)),
        "metadata": {"language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _cells(text: str) -> Iterator[dict[str, object]]:
    for i, part in enumerate(_CODE.split(text)):
        if i % 2:
            code = re.sub(r"\A# file: (\S+)\n", r"%%writefile \1\n", part)
            yield _cell(i, "code", code) | {"execution_count": None, "outputs": []}
        else:
            words = re.sub(r"^```\{image\}.*?^```\n", "", part, flags=re.DOTALL | re.MULTILINE)
            words = re.sub(r",? or open \[the notebook\]\(\S+\)", "", words)
            yield _cell(i, "markdown", _LINK.sub(r"\1", words))


def _cell(i: int, kind: str, text: str) -> dict[str, object]:
    lines = text.strip().splitlines(keepends=True)
    return {"id": f"cell-{i}", "cell_type": kind, "metadata": {}, "source": lines}


if __name__ == "__main__":
    for page in PAGES:
        (FOLDER / f"{page}.ipynb").write_text(notebook(page), encoding="utf-8")
