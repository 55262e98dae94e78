"""The support matrix: what the tests run is what docs/limits.md says.

    python -m tests.surfaces.matrix docs/limits.md

writes the table between the two markers in that file. `test_matrix.py`, `test_ddp.py` and
`test_fsdp.py` run every cell, and hold that the table of the page is this one.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.precision import MixedPrecision

from lightning_jd.surfaces._support import REFUSED
from tests.helpers.lightning import Regression
from tests.surfaces.features import BF16, FP16, Compiled

START, END = "<!-- support matrix -->", "<!-- end of the support matrix -->"


def _half() -> dict[str, Any]:
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    return {"plugins": [MixedPrecision("16-mixed", "cpu", scaler)]}


def _named(precision: str) -> Callable[[], dict[str, Any]]:
    return lambda: {"precision": precision}


#: Precision to the arguments of a Trainer on a CPU, and how close two runs in it are.
PRECISIONS: dict[str, tuple[Callable[[], dict[str, Any]], dict[str, float]]] = {
    "32-true": (_named("32-true"), {"rtol": 1e-4, "atol": 1e-5}),
    "64-true": (_named("64-true"), {}),
    "bf16-mixed": (_named("bf16-mixed"), BF16),
    "bf16-true": (_named("bf16-true"), BF16),
    "16-mixed": (_half, FP16),
    "16-true": (_named("16-true"), FP16),
}
#: Name of the column to the class of the module.
MODULES: dict[str, type[Regression]] = {"eager": Regression, "compiled": Compiled}
#: What a user writes to the number of processes in the tests.
STRATEGIES = {
    "`JacobianDescent()`": 1,
    "`strategy='jd'`": 1,
    "`JacobianDescent()`, `strategy='ddp'`": 2,
    "`strategy='jd_ddp'`": 2,
    "`JacobianDescent()`, `strategy=ModelParallelStrategy(...)` (FSDP2)": 2,
}
#: What Lightning does not offer.
MISSING = {
    next(name for name in STRATEGIES if "ModelParallel" in name): {"64-true", "16-mixed"},
}


def table() -> str:
    """The matrix in Markdown."""
    lines = [["", *PRECISIONS], ["---", *[":-:"] * len(PRECISIONS)]]
    for name, processes in STRATEGIES.items():
        note = "" if processes == 1 else f", {processes} processes"
        missing = MISSING.get(name, set())
        lines.append([f"{name}{note}", *("-" if each in missing else "✓" for each in PRECISIONS)])
    rows = [f"| {' | '.join(cells)} |" for cells in lines]
    refused = ", ".join(f"`{name}`" for name in sorted(REFUSED))
    legend = (
        f"✓: tested on a CPU, {' and '.join(MODULES)}; -: not offered by Lightning. "
        f"Refused at setup: {refused} ([why](#refused-at-setup))."
    )
    return "\n".join([*rows, "", legend])


def write(path: Path) -> None:
    """Put the table between the markers of a file."""
    text = path.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{START}\n{table()}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
