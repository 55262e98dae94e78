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
from examples.lab.crew import hired
from examples.lab.device import here, measured_on, name_of_device, stay_on, usable
from lightning_jd.errors import ArgumentError

ABSENT = "cuda" if not torch.cuda.is_available() else "xpu"

#: Its networks are so small that it runs on the CPU only.
WITHOUT = {"imbalance"}


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


@pytest.mark.parametrize("name", ["nonsense", "meta"])
def test_what_cannot_compute_is_no_device(name: str) -> None:
    with pytest.raises(ArgumentError, match=rf"can use here \(cpu.*got '{name}'"):
        usable(name)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement on some device that is no CPU."""
    monkeypatch.setattr(module, "_current", [torch.device("meta")])


@pytest.mark.usefixtures("elsewhere")
def test_the_clock_of_a_processor_does_not_see_a_device() -> None:
    with pytest.raises(ArgumentError, match="`clock` must be 'wall'"):
        interleaved({"a": lambda: None}, repeats=1, clock="cpu")
    assert best_clock() == "wall"


def test_the_number_of_a_device_is_told_to_torch_and_not_part_of_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    class Module:
        @staticmethod
        def synchronize(device: Any = None) -> None:
            asked.append(device)

        @staticmethod
        def get_device_name(device: Any = None) -> str:
            asked.append(device)
            return "L4"

    monkeypatch.setattr(torch, "get_device_module", lambda device: Module)
    for name, told in (("cuda", None), ("cuda:1", torch.device("cuda:1")), ("mps:0", None)):
        monkeypatch.setattr(module, "_current", [torch.device(name)])
        module.wait_for_device()
        assert name_of_device() == f"{name.partition(':')[0]}: L4"
        assert asked == [told, told]
        asked.clear()


def test_a_process_may_stay_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_current", [torch.device("meta")])
    stay_on("cpu")
    assert name_of_device() == "cpu"
    with measured_on("cpu:0"):
        assert here() == torch.device("cpu:0")
    assert here() == torch.device("cpu")


def _telling() -> Callable[[], str]:
    return lambda: str(here())


@pytest.mark.slow
def test_workers_are_on_the_device_of_who_hired_them() -> None:
    with measured_on("cpu:0"), hired(2, _telling) as asked:
        assert asked() == "cpu:0"
