"""The models here are small, but it is the tape that is tested."""

import pytest

from lightning_jd.engines.tape import _step


@pytest.fixture(autouse=True)
def _tasks_go_by_the_tape(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere tasks of small networks go by a plain loop, which has tests of its own."""
    if request.path.name != "test_loop.py":
        monkeypatch.setattr(_step, "MAX_LOOP_NUMBERS", 0)
