"""Who may import whom: the table of docs/contributing.md, held by reading the imports."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "lightning_jd"
ALLOWED = {
    "errors": set(),
    "linalg": {"errors"},
    "aggregators": {"errors", "linalg"},
    "optim": {"errors", "linalg", "aggregators"},
    "engines": {"errors", "linalg"},
    "metrics": {"errors", "linalg"},
    "core": {"errors", "linalg", "aggregators", "engines", "metrics"},
    "report": {"errors"},
    "surfaces": {"errors", "linalg", "aggregators", "engines", "metrics", "core", "report"},
}
HEAVY = ["lightning", "pytorch_lightning", "torchjd", "matplotlib", "rich", "qpsolvers"]


def rooms_imported(file: Path) -> set[str]:
    names = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    parts = [name.split(".") for name in names]
    return {part[1] for part in parts if part[0] == "lightning_jd" and len(part) > 1}


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_imports_only_from_the_rooms_below_it(room: str) -> None:
    files = [*PACKAGE.glob(f"{room}.py"), *PACKAGE.glob(f"{room}/**/*.py")]
    foreign = {
        str(file.relative_to(PACKAGE)): extra
        for file in files
        if (extra := rooms_imported(file) - ALLOWED[room] - {room})
    }
    assert not foreign


@pytest.mark.slow
def test_importing_the_package_imports_nothing_heavy() -> None:
    code = f"import sys, lightning_jd; print([m for m in {HEAVY} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
