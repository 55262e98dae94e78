"""The device of a measurement: every command takes it, and refuses one that is not there."""

from collections.abc import Callable, Iterator
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.lab import device as module
from examples.lab.__main__ import COMMANDS, Commands
from examples.lab.clock import best_clock, interleaved
from examples.lab.device import here
from lightning_jd.errors import ArgumentError

ABSENT = "cuda" if not torch.cuda.is_available() else "xpu"

#: Their networks are so small that they run on the CPU only.
WITHOUT = {"exactness", "flipped", "imbalance", "large_batches"}


def measurements(commands: Commands) -> Iterator[tuple[str, Callable[..., None]]]:
    for name, command in commands.items():
        if isinstance(command, tuple):
            yield from measurements(command[1])
        elif name not in WITHOUT:
            file, _, function = command.partition(":")
            yield name, getattr(import_module(file), function)


MEASUREMENTS = dict(measurements(COMMANDS))


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_every_measurement_refuses_a_device_that_is_not_there(name: str, tmp_path: Path) -> None:
    """Before anything else: there is no data either."""
    given: dict[str, Any] = {"output": tmp_path}
    if "data" in signature(MEASUREMENTS[name]).parameters:
        given["data"] = str(tmp_path / "nothing")
    with pytest.raises(ArgumentError, match=rf"`device` must be one .* got '{ABSENT}'.*Choose one"):
        MEASUREMENTS[name](device=ABSENT, **given)
    assert here() == torch.device("cpu")


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement on some device that is no CPU."""
    monkeypatch.setattr(module, "_current", [torch.device("meta")])


@pytest.mark.usefixtures("elsewhere")
def test_the_clock_of_a_processor_does_not_see_a_device() -> None:
    with pytest.raises(ArgumentError, match="`clock` must be 'wall'"):
        interleaved({"a": lambda: None}, repeats=1, clock="cpu")
    assert best_clock() == "wall"
