"""The code blocks of the README and of the documentation, as their readers see them."""

import doctest
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = {
    str(page.relative_to(ROOT)): page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "_build" not in page.parts
}
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$(?:\n+^```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# file: (\S+)\n")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: The page, relative to the root of the repository.
        line: The line of the page where its code begins.
        language: ``"python"``, ``"bash"``, ...
        code: What stands between the fences.
        output: The ``text`` block that follows at once: what the code prints.
    """

    page: str
    line: int
    language: str
    code: str
    output: str | None

    @property
    def file(self) -> str | None:
        """The file that the reader is asked to save the block in, by its first line."""
        named = _FILE.match(self.code)
        return None if named is None else named[1]

    @property
    def is_session(self) -> bool:
        """Whether the block is an interactive session with its output."""
        return ">>> " in self.code


def blocks_of(page: str) -> list[Block]:
    text = PAGES[page].read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, found.start(2)) + 1, found[1], found[2], found[3])
        for found in _FENCE.finditer(text)
    ]


def all_blocks(language: str) -> Iterator[Block]:
    for page in PAGES:
        yield from (block for block in blocks_of(page) if block.language == language)


def prints(shown: str, printed: str, tolerance: float = 0.03) -> bool:
    """Whether every line that a page shows is printed, in this order, numbers within a tolerance.

    ``...`` stands for anything. Numbers differ from one processor to another by rounding, and
    after a training by an example or two.
    """
    lines = iter(printed.splitlines())
    return all(
        any(_same(line.strip(), other.strip(), tolerance) for other in lines)
        for line in shown.splitlines()
        if line.strip() not in {"", "..."}
    )


def _same(shown: str, printed: str, tolerance: float) -> bool:
    words = _NUMBER.sub("#", shown), _NUMBER.sub("#", printed)
    if "..." in shown:
        return doctest.OutputChecker().check_output(words[0], words[1], doctest.ELLIPSIS)
    numbers = [[float(number) for number in _NUMBER.findall(line)] for line in (shown, printed)]
    return _squeezed(words[0]) == _squeezed(words[1]) and all(
        abs(a - b) <= tolerance * max(abs(a), abs(b)) for a, b in zip(*numbers, strict=True)
    )


def _squeezed(text: str) -> str:
    """Columns may be wider by a digit."""
    return " ".join(text.split())
