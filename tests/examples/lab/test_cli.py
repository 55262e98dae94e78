"""The laboratory as a newcomer meets it: commands, folders, devices, tables and files."""

import json
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.lab import __main__ as cli
from examples.lab import device
from examples.lab.__main__ import COMMANDS, Commands
from examples.lab.bench.all import BENCHES
from examples.lab.clock import best_clock, interleaved
from examples.lab.report import Report, Value
from lightning_jd.errors import ArgumentError

ABSENT = "cuda" if not torch.cuda.is_available() else "xpu"
#: Their networks are so small that they run on the CPU only.
ON_CPU = {"exactness", "flipped", "fronts", "frozen", "imbalance", "large_batches"}


def commands(some: Commands, *before: str) -> Iterator[tuple[tuple[str, ...], Callable[..., None]]]:
    """Each command: its words, and the function."""
    for name, command in some.items():
        if isinstance(command, tuple):
            yield from commands(command[1], *before, name)
        else:
            file, _, function = command.partition(":")
            yield (*before, name), getattr(import_module(file), function)


EVERY = dict(commands(COMMANDS))


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for words, function in EVERY.items():
        with pytest.raises(SystemExit) as stopped:
            cli.main([*words, "--help"])
        assert stopped.value.code == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert all(f"--{name}" in shown for name in signature(function).parameters), words


def test_every_benchmark_that_runs_a_step_is_in_the_bundle() -> None:
    _, benches = COMMANDS["bench"]
    assert set(BENCHES) == set(benches) - {"all", "exactness"}


def test_a_command_of_a_group_gets_its_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--sizes", "[2]", "--families", "[gaussian]", "--methods", "[upgrad]"]
    options = ["--repeats", "1", "--m1024", "false", "--output", str(tmp_path)]
    assert cli.main(["bench", "weights", *words, *options]) == 0
    assert (tmp_path / "weights.json").exists()
    assert "gaussian" in capsys.readouterr().out


def test_an_error_is_one_message_and_options_may_have_dashes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["--batch-size", "1"], ["--batch-size=1"], ["--batch_size=1"]):
        assert cli.main(["iwrm", *words]) == 1
        assert "`batch_size` must be at least 2" in capsys.readouterr().err
    assert cli.main(["regularisation", "--data", "nowhere", "--output", str(tmp_path)]) == 1
    message = capsys.readouterr().err
    assert message.startswith("examples.lab: `data` must be a folder with the file train-images")
    assert "Traceback" not in message


@pytest.mark.parametrize("words", [words for words in EVERY if words[0] != "bench"], ids=" ".join)
def test_a_folder_that_cannot_be_written_is_refused_before_the_work(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("not a folder")
    for folder in ("/proc/nowhere", str(tmp_path / "file")):
        assert cli.main([*words, "--output", folder]) == 1
        assert f"`output` must be a folder that can be written to, got {folder!r}" in (
            capsys.readouterr().err
        )


def test_every_measurement_refuses_a_device_that_is_not_there(tmp_path: Path) -> None:
    """Before anything else: there is no data either."""
    message = rf"`device` must be one .* got '{ABSENT}'.*Choose one"
    for words, function in EVERY.items():
        if words[-1] not in ON_CPU:
            data = "data" in signature(function).parameters
            given: dict[str, Any] = {"data": str(tmp_path / "nothing")} if data else {}
            with pytest.raises(ArgumentError, match=message):
                function(device=ABSENT, output=tmp_path, **given)
            assert device.here() == torch.device("cpu")


def test_the_clock_of_a_processor_does_not_see_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_current", [torch.device("meta")])
    with pytest.raises(ArgumentError, match="`clock` must be 'wall'"):
        interleaved({"a": lambda: None}, repeats=1, clock="cpu")
    assert best_clock() == "wall"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (-0.0, "0"),
        (2.5e-16, "2.5e-16"),
        (0.0321, "0.0321"),
        (8873.2, "8,873"),
        (3e23, "3e+23"),
        (float("inf"), "inf"),
        (7, "7"),
        ("low_rank", "low_rank"),
    ],
)
def test_numbers_are_shown_as_a_reader_wants_them(value: Value, shown: str) -> None:
    page = Report("x", "x", {"v": "v"}, [{"v": value}]).markdown()
    assert f"| {shown} |" in page


def test_a_table_keeps_every_value_and_is_read_back(tmp_path: Path) -> None:
    rows = [{"family": "gaussian", "ratio": None, "met": True, "hidden": 0.123456789}]
    report = Report("weights", "Ours", {"family": "family", "met": "met"}, rows, ["Wall time."])
    data, page = report.write(tmp_path / "new" / "folder")
    content = json.loads(data.read_text())
    assert content["rows"][0]["hidden"] == 0.123456789
    assert content["environment"]["torch"] == version("torch")
    assert page.read_text() == report.markdown()
    assert Report.read(data) == report
