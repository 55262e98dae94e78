"""Who may import whom: the table of docs/contributing.md, held by reading the imports."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "lightning_jd"
LABORATORY = Path(__file__).parents[1] / "examples" / "lab"
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
    "work": {"data"},
    "gallery": set(),
    "bench": {"data", "work", "gallery"},
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
    "engines/tape": ["graph", "owners", "contributions", "rules", "plan", "run"],
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


#: Private names of another room that are imported today: this list may only become shorter.
PRIVATE = {
    "core/_losses.py": {"aggregators._halves.SUFFIXES"},
    "optim/_moments.py": {"aggregators._arguments.not_negative", "aggregators._arguments.share"},
    "optim/_sgd.py": {"aggregators._arguments.not_negative"},
    "surfaces/_observe.py": {
        *(
            "metrics._alignment.Alignment",
            "metrics._alignment.of_direction",
            "metrics._alignment.of_unit",
        ),
        *("metrics._unit.TOLERANCE", "metrics._unit.unit_gramian"),
    },
    "surfaces/_promise.py": {"aggregators._dualcone.scale_of_reg"},
}


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_imports_nothing_private_from_another_room(room: str) -> None:
    found = {
        f"{path} imports {name}"
        for file in PACKAGE.glob(f"{room}/**/*.py")
        for path in [str(file.relative_to(PACKAGE))]
        for name in names_imported(file)
        if not name.startswith(f"{room}.") and "._" in name and name not in PRIVATE.get(path, ())
    }
    assert not found


def names_imported(file: Path) -> set[str]:
    """What a file imports from the package, without the name of the package."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    package = "lightning_jd."
    return {name.removeprefix(package) for name in names if name.startswith(package)}


@pytest.mark.parametrize("folder", LAB)
def test_a_folder_of_the_laboratory_imports_only_public_files_of_those_below_it(
    folder: str,
) -> None:
    top = {file.stem for file in LABORATORY.glob("*.py")}
    files = (LABORATORY / folder).glob("**/*.py" if folder else "[!_]*.py")
    foreign = {
        f"{file.relative_to(LABORATORY)} imports {'.'.join(parts)}"
        for file in files
        for parts in [part[2:] for part in modules_imported(file) if part[0] == "examples"]
        if parts[0] != folder
        if parts[0] not in top | LAB[folder] or any(part.startswith("_") for part in parts)
    }
    assert not foreign


def test_folders_of_tests_mirror_those_of_the_package() -> None:
    here, rooms = Path(__file__).parent, [room.name for room in PACKAGE.glob("[!_]*/")]
    folders = [folder for room in rooms for folder in (here / room).glob("**/[!_.]*/")]
    own = {"fuzz", "zoo", "data"}
    assert {f.name for f in folders if not (PACKAGE / f.relative_to(here)).is_dir()} <= own


def test_the_package_imports_neither_examples_nor_tests() -> None:
    foreign = {
        str(file.relative_to(PACKAGE)): parts
        for file in PACKAGE.glob("**/*.py")
        for parts in modules_imported(file)
        if parts[0] in ("examples", "tests")
    }
    assert not foreign


@pytest.mark.slow
def test_importing_the_package_imports_nothing_heavy() -> None:
    code = f"import sys, lightning_jd; print([m for m in {HEAVY} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
