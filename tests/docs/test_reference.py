"""The reference holds every public name and every command."""

import importlib
import inspect
import pkgutil
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import lightning_jd
from lightning_jd import cli
from tests.docs.blocks import ROOT

REFERENCE = ROOT / "docs" / "reference"
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in sorted(REFERENCE.glob("*.md")))
#: Reached under the names of `lightning_jd`; commands have a page of their own.
ELSEWHERE = {"surfaces", "cli"}


def public_modules() -> list[str]:
    """The package, its rooms, and the tape, which takes rules: all that say what they offer."""
    rooms = [room.name for room in pkgutil.iter_modules(lightning_jd.__path__)]
    names = [f"lightning_jd.{room}" for room in rooms if room[0] != "_" and room not in ELSEWHERE]
    return ["lightning_jd", *names, "lightning_jd.engines.tape"]


def names_of(module: str) -> list[str]:
    found = importlib.import_module(module)
    every = getattr(found, "__all__", None) or [
        name for name, value in vars(found).items() if getattr(value, "__module__", "") == module
    ]
    return [name for name in every if (module, name) != ("lightning_jd.doctor", "doctor")]


def documented(module: str, name: str) -> bool:
    """Whether a page asks for the name: by itself, or as a member of a module that offers it."""
    if re.search(rf":: lightning_jd\.(?:\S+\.)?{name}$", TEXT, re.MULTILINE):
        return True
    value = getattr(importlib.import_module(module), name)
    if not inspect.isclass(value) and not inspect.isroutine(value):
        return False  # autodoc leaves out what cannot have a docstring
    asked = re.findall(r"automodule:: (\S+)\n   :members:\n(?:   :exclude-members: (.*))?", TEXT)
    return any(
        name in names_of(holder) and name not in excluded.split(", ")
        for holder, excluded in asked
        if holder in public_modules()
    )


@pytest.mark.parametrize("module", public_modules())
def test_every_public_name_is_in_the_reference(module: str) -> None:
    missing = [name for name in names_of(module) if not documented(module, name)]
    assert not missing, f"add them to docs/reference: {missing}"


def test_a_missing_name_is_noticed() -> None:
    assert documented("lightning_jd.aggregators", "UPGrad")
    assert not documented("lightning_jd.aggregators", "_registry")


@pytest.mark.parametrize("command", ["doctor", "report", "compare", "front"])
def test_the_page_of_the_commands_shows_their_help(command: str) -> None:
    page = (REFERENCE / "commands.md").read_text(encoding="utf-8")
    shown = page.partition(f"## lightning-jd {command}\n")[2].partition("\n## ")[0]
    (commands,) = [each.choices for each in cli.parser()._actions if isinstance(each.choices, dict)]
    for action in commands[command]._actions[1:]:  # without --help
        value = [] if action.nargs == 0 else [action.metavar or action.dest.upper()]
        name = " ".join([*action.option_strings[:1], *value])
        assert re.search(rf"^  {re.escape(name)} +{re.escape(action.help)}$", shown, re.MULTILINE)
    assert set(commands) == set(re.findall(r"^## lightning-jd (\w+)$", page, re.MULTILINE))


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; every warning is an error."""
    sphinx = pytest.importorskip("sphinx.cmd.build")
    for extension in (
        *("myst_parser", "furo", "sphinx-mathjax-offline"),
        *("sphinx_copybutton", "sphinx_design"),
    ):
        if find_spec(extension) is None:
            pytest.skip(f"the extra `docs` is not installed: {extension}")
    folder = tmp_path_factory.mktemp("site")
    assert sphinx.main(["-W", "-q", "-b", "html", str(ROOT / "docs"), str(folder)]) == 0
    return folder


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Sphinx and its theme; -W is about ours
def test_the_built_reference_has_every_name(site: Path) -> None:
    from sphinx.util.inventory import InventoryFile

    with (site / "objects.inv").open("rb") as file:
        inventory = InventoryFile.load(file, "", lambda _, path: path)
    inventory = getattr(inventory, "data", inventory)  # a dict in some versions of Sphinx
    found = {n.rpartition(".")[2] for kind in inventory if "py:" in kind for n in inventory[kind]}
    for module in public_modules():
        missing = set(names_of(module)) - found
        assert not missing, module


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_pages_load_nothing_from_other_servers(site: Path) -> None:
    assert (site / "_static" / "mathjax" / "tex-chtml.js").is_file()
    assert list((site / "_static" / "mathjax").rglob("*.woff"))
    loads = re.compile(
        r"<(?:script|img|iframe|link rel=\"stylesheet\")[^>]*(?:src|href)=\"(\S+?)\""
    )
    for page in site.rglob("*.html"):
        loaded = loads.findall(page.read_text(encoding="utf-8"))
        assert not [url for url in loaded if url.startswith(("http", "//"))], page.name
