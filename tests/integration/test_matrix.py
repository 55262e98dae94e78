"""Every cell of the support matrix on one device; `test_ddp.py` runs those on two processes."""

from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest

from lightning_jd.errors import SetupError
from lightning_jd.surfaces import JacobianDescent, JDStrategy
from lightning_jd.surfaces._support import REFUSED
from tests.helpers.lightning import Regression, assert_same_weights, batches, fit, moved
from tests.integration.matrix import END, MODULES, PRECISIONS, START, STRATEGIES, table, write

ONE_DEVICE = [name for name, processes in STRATEGIES.items() if processes == 1]


def surface(name: str, aggregator: str) -> dict[str, Any]:
    if "jd" in name:
        return {"strategy": JDStrategy(aggregator)}
    return {"callbacks": [JacobianDescent(aggregator)]}


@pytest.mark.parametrize(
    "module",
    [pytest.param(m, marks=pytest.mark.slow if "compiled" in m else ()) for m in MODULES],
)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("strategy", ONE_DEVICE)
def test_cell_on_one_device(strategy: str, precision: str, module: str) -> None:
    arguments, tolerance = PRECISIONS[precision]
    data = batches(n=12)
    ours, plain = MODULES[module]("instances"), MODULES[module]("scalar")
    fit(plain, data, max_epochs=1, **arguments())
    ours = MODULES[module]("instances")  # after `plain`, which compiles for itself
    fit(ours, data, max_epochs=1, **arguments(), **surface(strategy, "mean"))
    assert moved(ours, MODULES[module]())
    assert_same_weights(ours, plain, **tolerance)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_cell(name: str) -> None:
    fake = type(name, (L.strategies.SingleDeviceStrategy,), {})  # the real ones need accelerators
    with pytest.raises(SetupError, match=f"does not support {name}: "):
        fit(Regression("tasks"), strategy=fake(), callbacks=[JacobianDescent()])


def test_the_table_is_written_between_the_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"above\n{START}\nold\n{END}\nbelow\n")
    write(page)
    assert page.read_text() == f"above\n{START}\n{table()}\n{END}\nbelow\n"


def test_the_table_of_the_page_is_up_to_date() -> None:
    page = (Path(__file__).parents[2] / "docs" / "limits.md").read_text(encoding="utf-8")
    assert f"{START}\n{table()}\n{END}" in page
