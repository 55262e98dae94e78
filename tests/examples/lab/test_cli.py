"""The command line of the laboratory: ``python -m examples.lab``."""

import subprocess
import sys
from pathlib import Path

import pytest

from examples.lab import __main__ as cli

HERE = __name__


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    for command in (
        "bench",
        "imbalance",
        "iwrm",
        "momentum",
        "mtl",
        "regularisation",
        "speed",
        "trajectories",
    ):
        assert command in printed


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


def test_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["becnh"])
    assert stopped.value.code == 2
    assert "becnh" in capsys.readouterr().err


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


@pytest.mark.parametrize("command", ["iwrm", "mtl", "regularisation"])
def test_at_least_one_epoch(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "--epochs", "0"]) == 1
    assert "`epochs` must be at least 1, got 0" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["iwrm", "trajectories"])
@pytest.mark.parametrize(
    ("word", "names"),
    [("mean", ("mean",)), ("[mean]", ("mean",)), ("[mean, mgda]", ("mean", "mgda"))],
)
def test_one_aggregator_needs_no_brackets(
    command: str, word: str, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def settings_of(aggregators: object, regs: object) -> None:
        asked.append(aggregators)
        raise KeyboardInterrupt

    monkeypatch.setattr(f"examples.lab.studies.{command}.settings_of", settings_of)
    assert cli.main([command, "--aggregators", word]) == 130
    assert asked == [names]


def interrupted() -> None:
    """Wait for Ctrl-C."""
    raise KeyboardInterrupt


def test_ctrl_c_is_one_line_and_status_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["wait"], {"wait": f"{HERE}:interrupted"}) == 130
    assert capsys.readouterr().err.strip() == "Interrupted."


def test_an_experiment_that_is_interrupted_can_be_continued(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("examples.lab.studies.trajectories.check_matplotlib", interrupted)
    assert cli.main(["trajectories"]) == 130
    said = "Interrupted. Finished runs are kept; run the same command to continue."
    assert capsys.readouterr().err.strip() == said


def test_the_words_of_the_shell_are_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["examples.lab", "wait"])
    assert cli.main(None, {"wait": f"{HERE}:interrupted"}) == 130


def test_a_command_that_does_not_exist_is_a_mistake_of_ours() -> None:
    with pytest.raises(ImportError, match=r"errors:nothing does not exist"):
        cli.main(["x"], {"x": "lightning_jd.errors:nothing"})


def test_without_the_extra_the_message_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jsonargparse", None)
    assert cli.main(["--help"]) == 1
    assert "pip install 'lightning-jd[lab]'" in capsys.readouterr().err


@pytest.mark.slow
def test_help_imports_only_what_the_command_needs() -> None:
    code = (
        "import sys\nfrom examples.lab.__main__ import main\n"
        "try:\n    main(['bench', 'weights', '--help'])\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('lightning', 'torchjd', 'torchmetrics') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip().endswith("[]")
