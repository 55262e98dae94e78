"""The command line of the laboratory: ``python -m examples.lab``."""

from pathlib import Path

import pytest

from examples.lab import __main__ as cli

HERE = __name__


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["bench"], "weights"),
        (["bench", "weights"], "Numbers of objectives"),
        (["bench", "engines"], "plain mean-loss step"),
        (["bench", "fit"], "plain loop"),
        (["bench", "launches"], "dispatched operations"),
        (["bench", "scale"], "one objective per sequence"),
        (["bench", "metrics"], "metrics of one step"),
        (["regularisation"], "runs.jsonl"),
        (["imbalance"], "upgrad:trace"),
        (["iwrm"], "kuzushiji-mnist"),
        (["iwrm"], "start again at will"),
        (["speed"], "ratio to the SGD of the same"),
        (["trajectories"], "weakly stationary"),
    ],
)
def test_every_command_explains_itself(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main([*words, "--help"])
    assert stopped.value.code == 0
    assert expected in capsys.readouterr().out


def test_a_command_of_a_group_gets_its_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--sizes", "[2]", "--families", "[gaussian]", "--methods", "[upgrad]"]
    options = ["--repeats", "1", "--m1024", "false", "--output", str(tmp_path)]
    assert cli.main(["bench", "weights", *words, *options]) == 0
    assert (tmp_path / "weights.json").exists()
    assert "gaussian" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--batch-size", "1"], ["--batch-size=1"], ["--batch_size=1"]])
def test_options_may_have_dashes(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["iwrm", *words]) == 1
    assert "`batch_size` must be at least 2" in capsys.readouterr().err


def test_an_error_is_one_message_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["regularisation", "--data", "nowhere"]) == 1
    message = capsys.readouterr().err
    assert message.startswith("examples.lab: `data` must be a folder with the file train-images")
    assert "Traceback" not in message


FOLDERS = [
    ["imbalance"],
    ["iwrm"],
    ["mtl"],
    ["trajectories"],
    ["speed"],
    ["bench", "ddp"],
    ["bench", "engines"],
    ["bench", "fit"],
    ["bench", "launches"],
    ["bench", "methods"],
    ["bench", "metrics"],
    ["bench", "scale"],
    ["bench", "weights"],
]


@pytest.mark.parametrize("words", FOLDERS, ids=" ".join)
@pytest.mark.parametrize("kind", ["file", "impossible"])
def test_a_folder_that_cannot_be_written_is_refused_before_the_work(
    words: list[str], kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = "/proc/nowhere"
    if kind == "file":
        folder = str(tmp_path / "file")
        Path(folder).write_text("not a folder")
    assert cli.main([*words, "--output", folder]) == 1
    assert f"`output` must be a folder that can be written to, got {folder!r}" in (
        capsys.readouterr().err
    )
