"""The command line as a newcomer meets it."""

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lightning_jd import cli, doctor
from lightning_jd.errors import ArgumentError

HERE = __name__


def stopped(words: list[str]) -> object:
    """The exit status of the parser."""
    with pytest.raises(SystemExit) as found:
        cli.main(words)
    return found.value.code


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "Write the HTML report of a run"),
        (["doctor"], 'written "module:name"'),
        (["report"], "shown beside it."),
    ],
)
def test_help(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped([*words, "--help"]) == 0
    assert expected in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "required: COMMAND"),
        (["doktor"], "doktor"),
        (["doctor"], "required: TARGET"),
        (["doctor", "m:n", "--input-shape", "4, 3"], "must be a list in JSON, got '4, 3'"),
        (["doctor", "m:n", "--init", "[1]"], "must be an object in JSON, got '[1]'"),
    ],
)
def test_wrong_words_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stopped(words) == 2
    assert message in capsys.readouterr().err


def test_an_error_is_one_message_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "nowhere"]) == 1
    message = capsys.readouterr().err
    assert message.startswith("lightning-jd: `run_dir` must be")
    assert "Traceback" not in message


class Instances(nn.Module):
    """Losses from training_step and example_batch, as in a LightningModule."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layer = nn.Linear(3, width)

    def example_batch(self) -> Tensor:
        return torch.ones(5, 3)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.layer(batch).square().mean(dim=1)


class Tasks(Instances):
    def training_step(self, batch: Tensor, batch_idx: int) -> dict[str, dict[str, Tensor]]:
        out = self.layer(batch)
        return {"loss": {"depth": out.mean(), "normals": out.square().mean()}}


class OneNumber(Instances):
    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.layer(batch).std()


class Summed(Instances):
    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        out = self.layer(batch)
        return out.square().mean() + 0.1 * out.norm()


class Averaged(Instances):
    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.layer(batch).square().mean()


class NoStep(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 2)

    def example_batch(self) -> Tensor:
        return torch.ones(5, 3)


class WithExampleInput(nn.Linear):
    example_input_array = torch.ones(5, 3)

    def __init__(self) -> None:
        super().__init__(3, 2)


class Pair(nn.Module):
    """Two inputs by name, and two outputs."""

    example_input_array = (torch.ones(5, 3), torch.ones(5, 3))

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(a), self.layer(b)


class Named(Pair):
    example_input_array = {"a": torch.ones(5, 3), "b": torch.ones(5, 3)}  # noqa: RUF012

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.layer(a + b)


def plain() -> nn.Module:
    return nn.Linear(3, 2)


def losses_and_model() -> tuple[Tensor, nn.Module]:
    model = nn.Linear(3, 2)
    return model(torch.ones(4, 3)).mean(dim=1), model


NOT_CALLABLE = 3


def number() -> int:
    return 3


def diagnosis(target: str, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert cli.main(["doctor", f"{HERE}:{target}", *options]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("target", ["Instances", "Tasks"])
def test_the_doctor_runs_the_training_step(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    printed = diagnosis(target, capsys)
    assert "layer.weight" in printed
    assert "layer.bias" in printed


@pytest.mark.parametrize("target", ["WithExampleInput", "losses_and_model"])
def test_the_doctor_takes_inputs_and_losses(
    target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "weight" in diagnosis(target, capsys)


@pytest.mark.parametrize(("target", "found"), [("Summed", "2 tasks"), ("Averaged", "5 instances")])
def test_the_doctor_splits_a_scalar(
    target: str, found: str, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = diagnosis(target, capsys)
    assert f"split='auto'), which reads it as {found}." in printed
    assert "layer.weight" in printed


def test_the_doctor_calls_a_model_with_named_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    assert "layer.weight" in diagnosis("Named", capsys)


@pytest.mark.parametrize("shape", [[4, 5], [2, 3, 4, 5]])
def test_an_input_that_does_not_fit_is_explained(
    shape: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["doctor", f"{HERE}:plain", "--input-shape", str(shape)]) == 1
    message = f"Linear must take an input of shape {tuple(shape)}, got RuntimeError"
    assert message in capsys.readouterr().err


def test_the_doctor_finds_modules_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "project_of_a_newcomer.py").write_text(
        "from torch import nn\ndef model():\n    return nn.Linear(3, 2)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    words = ["doctor", "project_of_a_newcomer:model", "--input_shape", "[4, 3]"]
    assert cli.main(words) == 0
    assert "weight" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_colon", r"must be written 'module:name', got 'no_colon'. For instance"),
        ("no_such_module_at_all:Model", r"can be imported, got 'no_such_module_at_all'"),
        ("lightning_jd.errors:Nothing", r"got 'Nothing'. The module has: AggregatorError"),
        (f"{HERE}:NOT_CALLABLE", r"must be a class or a function, got int"),
        (f"{HERE}:number", r"must give a model or a pair \(losses, model\), got int"),
        (f"{HERE}:plain", r"neither a method `example_batch\(\)` nor .*--input_shape"),
        (f"{HERE}:OneNumber", r"got one number that cannot be split.*reduction='none'.*Std is no"),
        (f"{HERE}:NoStep", r"must have a method `training_step\(batch, batch_idx\)`"),
        (f"{HERE}:Pair", r"must return a tensor with one entry per instance .*got tuple"),
    ],
)
def test_what_the_doctor_cannot_do_is_explained(
    target: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["doctor", target]) == 1
    assert_matches(capsys.readouterr().err, message)


def test_missing_arguments_of_the_class_are_explained() -> None:
    with pytest.raises(ArgumentError, match=r"arguments of --init \(\{\}\), got: .*in_features"):
        doctor._losses_and_model(nn.Linear, "torch.nn:Linear", {}, None)


def assert_matches(text: str, pattern: str) -> None:
    import re

    assert re.search(pattern, text, re.DOTALL), text
