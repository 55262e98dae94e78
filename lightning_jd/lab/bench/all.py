"""``lightning-jd bench all``: all tables of one device, in one file that can be sent in."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from shutil import make_archive
from typing import Any

from lightning_jd._folders import writable_folder
from lightning_jd.lab.bench.engines import engines
from lightning_jd.lab.bench.fit import fit
from lightning_jd.lab.bench.gallery import gallery
from lightning_jd.lab.bench.launches import launches
from lightning_jd.lab.bench.methods import methods
from lightning_jd.lab.bench.metrics import metrics
from lightning_jd.lab.bench.optimizers import optimizers
from lightning_jd.lab.bench.scale import scale
from lightning_jd.lab.bench.weights import weights
from lightning_jd.lab.console import console
from lightning_jd.lab.device import measured_on

BENCHES: dict[str, Callable[..., None]] = {
    "engines": engines,
    "launches": launches,
    "methods": methods,
    "metrics": metrics,
    "weights": weights,
    "fit": fit,
    "optimizers": optimizers,
    "gallery": gallery,
    "scale": scale,
}


def bench_all(
    device: str = "cuda",
    repeats: int | None = None,
    output: Path = Path("results"),
) -> None:
    """Run the benchmarks of a step on a device, and put their tables into one zip.

    A benchmark that fails is noted with its error, and the others go on. Every table has the name
    of the device and all versions below it.

    Args:
        device: Where models and data are: "cuda", "cuda:1", "mps", "cpu", ...
        repeats: Timed rounds; by default as many as each benchmark does by itself.
        output: The folder that the tables and the zip are written to.
    """
    with measured_on(device):  # an error now, not after the first table
        pass
    folder = writable_folder(output / device.replace(":", "-"))
    options = {} if repeats is None else {"repeats": repeats}
    for name in BENCHES:
        _attempt(name, folder, device=device, clock="wall", output=folder, **options)
    bundle = make_archive(str(folder), "zip", folder)
    console().print(f"Wrote {bundle}. Send it in with an issue.", markup=False, soft_wrap=True)


def _attempt(name: str, folder: Path, **options: Any) -> None:
    try:
        BENCHES[name](**options)
    except Exception:
        (folder / f"{name}_failed.txt").write_text(traceback.format_exc(), encoding="utf-8")
