"""Run ``on_device`` in a process that knows the device from its start.

By hand: ``python -m pytest -p tests.pretended tests/accelerators/on_device``.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: The process ends with the last test: torch may abort while it takes down the device's threads.
RUN = "import os, sys, pytest; code = pytest.main(sys.argv[1:]); sys.stdout.flush(); os._exit(code)"
HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@pytest.mark.slow
def test_on_the_pretended_device() -> None:
    options = ["-p", "tests.pretended", "-p", "no:cacheprovider", "-q", "--tb=short"]
    done = subprocess.run(
        [sys.executable, "-c", RUN, *options, HERE / "on_device"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    assert " passed" in done.stdout
