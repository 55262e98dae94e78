"""Every test starts from the same seed and leaves no global state behind."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

# Tensors are small here, and processes many: threads that wait for each other cost more than they
# bring. The variable must be set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
import torch.distributed as dist

HERE = Path(__file__).parent
ON_DEVICE = "accelerators/on_device"
#: Whoever imports `pretended` registers a device in this process. The tests on it need a process
#: that knew it from the start: see ``accelerators/test_on_device.py``.
collect_ignore = ["pretended", *(() if "tests.pretended" in sys.modules else [ON_DEVICE])]
#: Lightning warns about itself and about small data; everything else stays an error.
LIGHTNING_WARNINGS = [
    # Lightning uses a name that torch has deprecated.
    r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning",
    # Advice about workers, logging intervals and devices.
    "ignore::lightning.fabric.utilities.warnings.PossibleUserWarning",
]


def uses_lightning(path: Path) -> bool:
    folder = path.relative_to(HERE).parent if path.is_relative_to(HERE) else Path()
    return str(folder) in ("surfaces", "report", "examples", ON_DEVICE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for line in reversed(LIGHTNING_WARNINGS if uses_lightning(item.path) else []):
            item.add_marker(pytest.mark.filterwarnings(line), append=False)


def switches() -> tuple[object, ...]:
    anomaly, autocast = torch.is_anomaly_enabled(), torch.is_autocast_enabled("cpu")
    return torch.get_default_dtype(), torch.is_grad_enabled(), anomaly, autocast


@pytest.fixture(autouse=True)
def _same_start_and_nothing_left_behind() -> Iterator[None]:
    torch.manual_seed(0)
    before = switches()
    yield
    assert switches() == before, "the test leaves a global switch of torch in another position"
    initialized = dist.is_available() and dist.is_initialized()
    if initialized:
        dist.destroy_process_group()
    assert not initialized, "the test leaves a process group behind"


@pytest.fixture(autouse=True)
def _lightning_writes_and_reads_nothing_of_ours(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if uses_lightning(request.path):
        monkeypatch.chdir(request.getfixturevalue("tmp_path"))
        monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # its command line
        monkeypatch.setattr(sys, "argv", ["pytest"])  # which must not read ours
