"""A function in a process of its own: its answer, its error, its death, and Ctrl-C."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.lab.apart import apart
from lightning_jd.errors import ArgumentError, JDError

pytestmark = pytest.mark.slow  # a process imports torch


def add(a: int, b: int) -> int:
    return a + b


def refuse() -> None:
    raise ArgumentError("`a` must be positive, got -1.")


def fail() -> None:
    raise RuntimeError("an illegal memory access was encountered")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def work_for_hours(note: Path) -> None:
    note.write_text(str(os.getpid()))
    time.sleep(3600)


def test_the_answer_comes_back() -> None:
    assert apart(add, a=1, b=2) == 3


def test_an_error_of_ours_is_told_as_it_is_and_others_with_their_traceback() -> None:
    with pytest.raises(ArgumentError, match=r"^`a` must be positive, got -1\.$"):
        apart(refuse)
    with pytest.raises(JDError, match=r"(?s)Traceback.*in fail.*illegal memory access"):
        apart(fail)


def test_a_process_that_dies_is_told() -> None:
    with pytest.raises(JDError, match="exit code -9"):
        apart(die)


@pytest.fixture
def heeded_ctrl_c() -> Iterator[None]:
    """A job in the background of a shell begins with SIGINT ignored, and Python leaves it so."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeded_ctrl_c")
def test_ctrl_c_ends_the_other_process(tmp_path: Path) -> None:
    note = tmp_path / "pid"

    def interrupt() -> None:
        while not (note.exists() and note.read_text()):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        apart(work_for_hours, note=note)
    pid, begin = int(note.read_text()), time.monotonic()
    while _is_there(pid):
        assert time.monotonic() - begin < 30
        time.sleep(0.05)


def _is_there(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False
