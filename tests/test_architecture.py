"""Who may import whom: the table of docs/contributing.md, held by reading the imports."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "lightning_jd"
ALLOWED = {
    "errors": set(),
    "_batch_norm": {"errors"},
    "linalg": {"errors"},
    "aggregators": {"errors", "linalg"},
    "optim": {"errors", "linalg", "aggregators"},
    "engines": {"errors", "linalg"},
    "metrics": {"errors", "linalg"},
    "core": {"errors", "linalg", "aggregators", "engines", "metrics"},
    "report": {"errors"},
    "surfaces": {
        *("errors", "_batch_norm", "linalg", "aggregators", "engines", "metrics", "core", "report")
    },
}
#: The same inside of the laboratory; the files at its top may be imported by all of its folders.
LAB = {
    "": set(),
    "data": set(),
    "work": set(),
    "gallery": set(),
    "pretended": set(),
    "bench": {"data", "work", "gallery", "pretended"},
    "studies": {"data", "work"},
}
HEAVY = "lightning pytorch_lightning torchmetrics torchjd matplotlib rich qpsolvers scipy".split()


def rooms_imported(file: Path) -> set[str]:
    parts = modules_imported(file)
    return {part[1] for part in parts if part[0] == "lightning_jd" and len(part) > 1}


def stages_imported(file: Path, room: str) -> set[str]:
    """What a file imports from inside a room, by the next part of the name."""
    inside = ["lightning_jd", *room.split("/")]
    n = len(inside)
    return {part[n] for part in modules_imported(file) if part[:n] == inside and len(part) > n}


def modules_imported(file: Path) -> list[list[str]]:
    names = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    return [name.split(".") for name in names]


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_imports_only_from_the_rooms_below_it(room: str) -> None:
    files = [*PACKAGE.glob(f"{room}.py"), *PACKAGE.glob(f"{room}/**/*.py")]
    foreign = {
        str(file.relative_to(PACKAGE)): extra
        for file in files
        if (extra := rooms_imported(file) - ALLOWED[room] - {room})
    }
    assert not foreign


#: The folders of a room in their order: each imports from those before it, and nothing from the
#: files above them.
STAGES = {
    "engines/tape": ["graph", "owners", "contributions", "rules", "plan", "program", "run"],
    "core": ["processes", "rows"],
}


@pytest.mark.parametrize(
    ("room", "stage"), [(room, stage) for room, stages in STAGES.items() for stage in stages]
)
def test_a_stage_imports_only_from_the_stages_before_it(room: str, stage: str) -> None:
    before = STAGES[room][: STAGES[room].index(stage) + 1]
    later = {
        str(file.relative_to(PACKAGE)): extra
        for file in (PACKAGE / room / stage).glob("**/*.py")
        if (extra := stages_imported(file, room) - set(before))
    }
    assert not later


@pytest.mark.parametrize("room", STAGES)
def test_every_folder_is_a_stage(room: str) -> None:
    folder = PACKAGE / room
    found = {file.parent.relative_to(folder).parts[0] for file in folder.glob("*/*.py")}
    assert found == set(STAGES[room])


def test_surfaces_import_nothing_private_from_core() -> None:
    files = (PACKAGE / "surfaces").glob("**/*.py")
    private = {file.name: extra for file in files if (extra := stages_imported(file, "core"))}
    assert not private


@pytest.mark.parametrize("folder", LAB)
def test_a_folder_of_the_laboratory_imports_only_public_files_of_those_below_it(
    folder: str,
) -> None:
    top = {file.stem for file in (PACKAGE / "lab").glob("*.py")}
    files = (PACKAGE / "lab" / folder).glob("**/*.py" if folder else "*.py")
    foreign = {
        f"{file.relative_to(PACKAGE)} imports {'.'.join(parts)}"
        for file in files
        for parts in [part[1:] for part in modules_imported(file) if part[0] == "lightning_jd"]
        if parts[:1] == ["lab"] and parts[1] != folder
        if parts[1] not in top | LAB[folder] or any(part.startswith("_") for part in parts)
    }
    assert not foreign


@pytest.mark.slow
def test_importing_the_package_imports_nothing_heavy() -> None:
    code = f"import sys, lightning_jd; print([m for m in {HEAVY} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
