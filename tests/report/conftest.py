"""Lightning's own warnings, as in the integration tests, and a folder for every test."""

from pathlib import Path

import pytest

from tests.integration.conftest import LIGHTNING_WARNINGS

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            for line in reversed(LIGHTNING_WARNINGS):
                item.add_marker(pytest.mark.filterwarnings(line), append=False)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
