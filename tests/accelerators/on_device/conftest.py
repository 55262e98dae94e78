"""These tests need a process that knew the device from its start: see ``tests/accelerators``."""

import sys
from pathlib import Path

import pytest

from tests.integration.conftest import LIGHTNING_WARNINGS, leaves_no_traces

__all__ = ["leaves_no_traces"]
HERE = Path(__file__).parent

if "tests.pretended" not in sys.modules:
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            for line in reversed(LIGHTNING_WARNINGS):
                item.add_marker(pytest.mark.filterwarnings(line), append=False)
