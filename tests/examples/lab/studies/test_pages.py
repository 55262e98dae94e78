"""Pages that scripts write from saved results: they are up to date, and say what they must."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[4] / "docs"


def script_of(page: str) -> ModuleType:
    """The script that writes a page of the documentation."""
    spec = importlib.util.spec_from_file_location(page, DOCS / f"{page}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def script() -> ModuleType:
    return script_of("paper")


@pytest.mark.parametrize("name", ["paper", "mtl", "benchmarks"])
def test_a_page_is_written_by_its_script_and_has_its_figures(name: str) -> None:
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    assert page == script_of(name).page()
    found = [part.partition(")")[0] for part in page.split("](figures/")[1:]]
    assert len(found) >= {"paper": 6, "mtl": 5}.get(name, 0)
    assert all((DOCS / "figures" / each).is_file() for each in found)


def test_the_readme_has_the_range_of_the_benchmarks() -> None:
    assert (DOCS.parent / "README.md").read_text("utf-8") == script_of("benchmarks").readme()


@pytest.mark.parametrize("dataset", ["mnist", "fashion-mnist", "cifar10"])
def test_upgrad_is_below_mean_over_three_seeds(script: ModuleType, dataset: str) -> None:
    found = script.report(f"iwrm-{dataset}")
    assert "3 seed(s) of 1024 images" in found.notes[0]
    areas = script.areas(found)
    for method in script.UPGRAD:
        assert areas[method] < areas[script.MEAN]


def test_upgrad_costs_at_most_1_4_epochs_of_sgd(script: ModuleType) -> None:
    upgrad = next(row for row in script.report("speed").rows if row["method"] == "UPGrad")
    assert all(upgrad[name] <= 1.4 for name in ("svhn", "cifar10", "eurosat", "mnist"))


@pytest.mark.parametrize("page", ["paper", "mtl", "benchmarks"])
def test_tables_are_narrow_enough_for_the_page(page: str) -> None:
    lines = (DOCS / f"{page}.md").read_text(encoding="utf-8").splitlines()
    widest = max((line for line in lines if line.startswith("|")), key=len)
    assert len(widest) <= 105, widest  # of a monospaced font; longer ones scrolled sideways
