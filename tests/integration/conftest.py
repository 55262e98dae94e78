"""Lightning warns about itself and about small data; everything else stays an error."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

LIGHTNING_WARNINGS = [
    # Lightning uses a name that torch has deprecated.
    r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning",
    # Advice about workers, logging intervals and devices.
    "ignore::lightning.fabric.utilities.warnings.PossibleUserWarning",
]
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            for line in reversed(LIGHTNING_WARNINGS):
                item.add_marker(pytest.mark.filterwarnings(line), append=False)


@pytest.fixture(autouse=True)
def leaves_no_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test runs in a folder of its own, and global switches are back where they were."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # Lightning's command line
    monkeypatch.setattr(sys, "argv", ["pytest"])  # is not to be read by it
    before = torch.get_default_dtype(), torch.is_anomaly_enabled(), torch.is_autocast_enabled("cpu")
    yield
    after = torch.get_default_dtype(), torch.is_anomaly_enabled(), torch.is_autocast_enabled("cpu")
    assert before == after
