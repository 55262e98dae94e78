"""A function in a process of its own: its answer, its error, its death, and Ctrl-C."""

import os
import signal

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
