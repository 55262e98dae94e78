"""The notebooks are the pages of the tutorials, and run from the first cell to the last."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.blocks import ROOT

TUTORIALS = ROOT / "docs" / "tutorials"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("notebooks", TUTORIALS / "notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["examples", "tasks"])
def test_a_notebook_is_written_from_its_page(page: str) -> None:
    shown = (TUTORIALS / f"{page}.ipynb").read_text(encoding="utf-8")
    assert shown == script().notebook(page), "run `python docs/tutorials/notebooks.py`"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("page", "printed"),
    [("examples", "upgrad: learning rate"), ("tasks", "sum off by")],
)
def test_a_notebook_runs(
    page: str,
    printed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One namespace for all cells, as in a kernel; `%%writefile` is the only magic."""
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MPLBACKEND", "Agg")
    known, namespace = set(sys.modules), {"__name__": "__main__"}
    cells = json.loads((TUTORIALS / f"{page}.ipynb").read_text(encoding="utf-8"))["cells"]
    for cell in cells:
        code = "".join(cell["source"])
        first, _, rest = code.partition("\n")
        if cell["cell_type"] != "code":
            continue
        if first.startswith("%%writefile "):
            Path(first.split()[1]).write_text(rest, encoding="utf-8")
        else:
            exec(compile(code, cell["id"], "exec"), namespace)
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
    assert printed in capsys.readouterr().out
