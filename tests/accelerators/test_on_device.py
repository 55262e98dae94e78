"""Run what is in ``on_device`` in processes that know the device from their start.

By hand: ``python -m pytest -p tests.pretended tests/accelerators/on_device``.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FILES = sorted(path.name for path in (HERE / "on_device").glob("test_*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_on_the_pretended_device(name: str) -> None:
    path = HERE / "on_device" / name
    command = [sys.executable, "-m", "pytest", "-p", "tests.pretended", "-q", "--tb=short", path]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    assert " passed" in done.stdout
