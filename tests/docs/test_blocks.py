"""Every block of code of the README and the documentation runs by itself."""

import ast
import doctest
import logging
import os
import shlex
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.lab.__main__ import COMMANDS, _add, _parser, _underscored
from lightning_jd import cli
from lightning_jd.aggregators import _registry
from lightning_jd.engines.tape import unregister_flow, unregister_rule
from tests.docs.blocks import PAGES, Block, all_blocks, blocks_of, prints

PYTHON = list(all_blocks("python"))
#: Pages whose programs train for a while, or compile.
LONG = (
    *("docs/tutorials/", "docs/distributed.md", "docs/guides/compile.md"),
    "docs/guides/networks.md",
)
LAB = "python -m examples.lab "
OPTIONAL = {
    *"hydra wandb sklearn torchjd peft pina torch_geometric matplotlib transformers".split()
}
#: Commands that a page runs, one line each.
SHELL = [
    pytest.param(line.strip(), id=f"{block.page}:{block.line}")
    for block in all_blocks("bash")
    for line in block.code.replace("\\\n", " ").splitlines()
    if line.strip().startswith(("lightning-jd ", LAB))
]


@pytest.fixture(autouse=True)
def _a_place_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(_registry, "_CLASSES", dict(_registry._CLASSES))
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(logging, "raiseExceptions", False)  # Lightning keeps an older stderr
    threads, known, environment = torch.get_num_threads(), set(sys.modules), dict(os.environ)
    yield
    torch.set_num_threads(threads)
    for name in set(sys.modules) - known:  # files that a page asks its reader to save
        if getattr(sys.modules[name], "__file__", None) == str(tmp_path / f"{name}.py"):
            del sys.modules[name]
    os.environ.clear()
    os.environ.update(environment)
    unregister_rule("TrilinearBackward0", 1)  # of the page on rules
    unregister_rule("MatrixBackward", 1)
    unregister_flow("MatrixBackward")


def missing(block: Block) -> list[str]:
    """The packages that a block imports and that are not installed here."""
    names = {
        (alias.name if isinstance(node, ast.Import) else node.module or "").partition(".")[0]
        for node in ast.walk(ast.parse(block.code))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    return [name for name in names & OPTIONAL if find_spec(name) is None]


@pytest.mark.filterwarnings("ignore")  # Lightning's advice on small programs is not the subject
@pytest.mark.parametrize(
    "block",
    [
        pytest.param(
            block,
            id=f"{block.page}:{block.line}",
            marks=[pytest.mark.slow] if block.page.startswith(LONG) else [],
        )
        for block in PYTHON
    ],
)
def test_a_block_runs_alone(
    block: Block,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if block.is_session:
        test = doctest.DocTestParser().get_doctest(block.code, {}, block.page, None, block.line)
        assert doctest.DocTestRunner().run(test).failed == 0
        return
    if absent := missing(block):
        pytest.skip(f"needs {', '.join(absent)}")
    for other in blocks_of(block.page):  # files of the page, which later blocks import
        if other.file is not None and other.line < block.line:
            (tmp_path / other.file).write_text(other.code, encoding="utf-8")
    if block.file is not None:
        (tmp_path / block.file).write_text(block.code, encoding="utf-8")
    if "init_process_group" in block.code:  # what torchrun sets for one process
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        for name, value in {"RANK": "0", "WORLD_SIZE": "1", **address}.items():
            monkeypatch.setenv(name, value)
    caplog.set_level(logging.INFO)
    exec(compile(block.code, f"{block.page}:{block.line}", "exec"), {"__name__": "__main__"})
    if block.output is not None:
        captured = capsys.readouterr()
        said = "\n".join([captured.out, captured.err, caplog.text, *caplog.messages])
        assert prints(block.output, said), f"the page shows\n{block.output}\nbut it prints\n{said}"


@pytest.mark.parametrize("line", SHELL)
def test_a_command_is_one_that_exists(line: str) -> None:
    words = shlex.split(line, comments=True)
    if not line.startswith(LAB):
        cli.parser().parse_args(words[1:])
        return
    pytest.importorskip("jsonargparse")
    words = [_underscored(word) for word in words[3:]]
    parser = _parser("", LAB)
    _add(parser, COMMANDS, words)
    parser.parse_args(words)  # exits with an error on an option that does not exist


def test_pages_with_code_are_found() -> None:
    assert len(PYTHON) > 60
    assert len(PAGES) > 45


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("loss 1.00", "loss 1.01", True),
        ("loss 1.00", "loss 1.20", False),
        ("a\n...\nb", "a\nx\nb", True),
        ("a\nb", "b\na", False),
        ("left ... right", "left 3 or 4 right", True),
        ("", "anything", True),
    ],
)
def test_output_is_compared_up_to_rounding(shown: str, printed: str, same: bool) -> None:
    assert prints(shown, printed) is same
