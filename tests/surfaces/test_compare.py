"""Comparisons of methods: what is the same in all runs, and what a run leaves behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_jd import Constant, JacobianDescent, JDModuleMixin, cli, compare
from lightning_jd.errors import ArgumentError, UnknownNameError
from lightning_jd.surfaces._namespace import surfaces_for
from lightning_jd.surfaces._runs import Job, Outcome
from lightning_jd.surfaces._script import plan_of_script
from lightning_jd.surfaces.comparison import plan_of

EXAMPLES = Path(__file__).parents[2] / "examples"
TRAINER: dict[str, Any] = {"accelerator": "cpu", "max_epochs": 2}


class Two(L.LightningModule):
    """Two tasks that pull one network in different directions, with dropout."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, width), nn.Dropout(0.2), nn.Linear(width, 2))

    def losses(self, x: Tensor) -> Tensor:
        return (self.net(x) - torch.stack([x[:, 0], -3 * x[:, 0]], dim=1)).square().mean(dim=0)

    def training_step(self, x: Tensor, batch_idx: int) -> dict[str, dict[str, Tensor]]:
        first, second = self.losses(x)
        return {"loss": {"first": first, "second": second}}

    def validation_step(self, x: Tensor, batch_idx: int) -> None:
        self.log("val_loss", self.losses(x).sum())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def points() -> Tensor:
    return torch.randn(48, 2, generator=torch.Generator().manual_seed(0))


def loader(**options: Any) -> DataLoader[Tensor]:
    return DataLoader(points(), 8, shuffle=True, **options)  # type: ignore[arg-type]


def run(methods: Any, module: Any = Two, **options: Any) -> Any:
    return compare(methods, module, loader(), DataLoader(points(), 48), trainer=TRAINER, **options)


def test_a_run_is_what_a_trainer_does_with_the_same_seed() -> None:
    found = run(["sum", "upgrad"], seeds=[3])
    for outcome in found.outcomes:
        L.seed_everything(3, workers=True, verbose=False)
        module = Two()
        trainer = L.Trainer(
            **TRAINER,
            callbacks=[JacobianDescent(outcome.label)],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )
        L.seed_everything(3, workers=True, verbose=False)
        trainer.fit(module, loader(), DataLoader(points(), 48))  # type: ignore[arg-type]
        (expected,) = trainer.validate(module, DataLoader(points(), 48), verbose=False)
        assert outcome.metrics == expected
    first, second = (outcome.metrics["val_loss"] for outcome in found.outcomes)
    assert first != second


@pytest.mark.parametrize("module", [Two, Two()], ids=["builder", "instance"])
@pytest.mark.parametrize("own", [True, False], ids=["own generator", "global generator"])
def test_all_runs_of_a_seed_begin_alike(module: Any, own: bool) -> None:
    options = {"generator": torch.Generator().manual_seed(7)} if own else {}
    methods = ["sum", "pcgrad", "rlw", "famo"]  # two of them draw random numbers
    found = compare(methods, module, loader(**options), trainer=TRAINER, seeds=2)
    starts = {(outcome.seed, outcome.start) for outcome in found.outcomes}
    assert len(found.outcomes) == 8
    assert len(starts) == 2
    same_weights = len({start[:8] for _, start in starts}) == 1
    same_batches = len({start[8:] for _, start in starts}) == 1
    assert (same_weights, same_batches) == (module is not Two, own)


def test_runs_that_begin_differently_are_a_warning() -> None:
    widths = iter([4, 8])
    with pytest.warns(RuntimeWarning, match="must begin alike, got different initial parameters"):
        run(["sum", "upgrad"], lambda: Two(next(widths)))


def test_random_numbers_and_the_environment_are_left_alone() -> None:
    torch.manual_seed(5)
    state, environment = torch.get_rng_state(), dict(os.environ)
    run(["sum"])
    assert torch.equal(torch.get_rng_state(), state)
    assert dict(os.environ) == environment


def test_a_run_that_fails_is_a_row() -> None:
    found = run({"good": "sum", "huge": Constant([1e30, 1e30]), "three": Constant([1, 2, 3])})
    assert found.table.columns[:2] == ["method", "val_loss"]
    assert [row[0] for row in found.table.rows] == ["good"]
    assert "seed 0: NonFiniteError: In batch" in found.table.errors["huge"]
    assert "one entry per objective (2), got 3" in found.table.errors["three"]
    assert "one entry per objective (2), got 3" in repr(found)
    assert "huge" in found.page()
    assert found.page().count("<polyline") == 2  # one line in the charts of two tasks


def test_the_table_has_means_over_seeds() -> None:
    found = run(["upgrad", "uw"], seeds=2)
    rows = {row[0]: dict(zip(found.table.columns, row, strict=True)) for row in found.table.rows}
    values = [each.metrics["val_loss"] for each in found.outcomes if each.label == "upgrad"]
    mean, error = sum(values) / 2, abs(values[0] - values[1]) / 2
    assert rows["upgrad"]["val_loss"] == f"{mean:.3g} ± {error:.1g}"
    assert rows["upgrad"]["time"] == "1"
    assert rows["upgrad"]["gets worse"] == "0%"
    assert rows["uw"]["gets worse"] == "-"  # a balancer computes no gradients of single losses
    assert "<iframe" in found._repr_html_()


def test_processes_find_the_same_and_finished_runs_are_kept(tmp_path: Path) -> None:
    here = run(["sum", "upgrad"], seeds=2)
    there = run(["sum", "upgrad"], seeds=2, workers=2, folder=tmp_path)
    for one, other in zip(here.outcomes, there.outcomes, strict=True):
        assert (one.label, one.seed, one.start) == (other.label, other.seed, other.start)
        assert one.metrics == pytest.approx(other.metrics)
        assert not other.error
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/outcome.json")}
    assert len(before) == 4
    again = run(["sum", "upgrad", "config"], seeds=2, folder=tmp_path)
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    assert [each.metrics for each in again.outcomes[:4]] == [e.metrics for e in there.outcomes]
    with pytest.raises(ArgumentError, match=r"`folder` must hold runs with the same settings.*lr"):
        run(["sum"], folder=tmp_path, lr=1)


def test_a_process_that_is_killed_is_a_row(tmp_path: Path) -> None:
    class Killed(Two):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError

    found = run(["sum"], Killed, workers=2, folder=tmp_path)
    assert found.outcomes[0].error == "the process ended with status -9"


class Interrupted(Two):
    def on_train_start(self) -> None:
        raise KeyboardInterrupt


def test_ctrl_c_is_a_keyboard_interrupt() -> None:
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(["sum"], Interrupted)
    assert signal.getsignal(signal.SIGINT) is handler


SCRIPT = """
import signal, sys, time, torch
from tests.surfaces.test_compare import Two, run
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
class Slow(Two):
    def training_step(self, x, batch_idx):
        time.sleep(0.05)
        return super().training_step(x, batch_idx)
found = run(["sum", "mean", "upgrad", "config"], Slow, workers=2, folder=sys.argv[1])
print([each.error for each in found.outcomes])
"""


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_what_was_stopped_goes_on(stop: signal.Signals, tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": root}
    first = subprocess.Popen(command, env=environment, cwd=root, start_new_session=True)
    end = time.monotonic() + 240
    while not list(tmp_path.glob("*/outcome.json")) and time.monotonic() < end:
        time.sleep(0.02)
    if stop == signal.SIGKILL:
        first.kill()
    else:
        os.killpg(first.pid, stop)  # as a terminal does
    assert first.wait(30) != 0
    while _members(first.pid) and time.monotonic() < end:  # none is left behind
        time.sleep(0.1)
    assert not _members(first.pid)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/outcome.json")}
    assert 1 <= len(before) < 4
    again = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True)
    assert again.stdout.strip() == "['', '', '', '']", again.stderr
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())


def _members(group: int) -> list[int]:
    """The processes of a process group that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of_group = stat.read_text().rpartition(") ")[2].split()[:3]
        except OSError:  # it has just ended
            continue
        if int(of_group) == group and state != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.mark.parametrize(
    ("methods", "options", "error", "message"),
    [
        (["upgrd"], {}, UnknownNameError, "Did you mean 'upgrad'"),
        (["sum", "sum"], {}, ArgumentError, "`methods` must be one or more different methods"),
        ([], {}, ArgumentError, "`methods` must be one or more different methods"),
        (["sum"], {"seeds": 0}, ArgumentError, "`seeds` must be their number or different numbers"),
        (["sum"], {"seeds": [1, 1]}, ArgumentError, "`seeds` must be their number or different"),
        (["sum"], {"workers": 0}, ArgumentError, "`workers` must be at least 1, got 0"),
    ],
)
def test_arguments_are_checked_before_anything_is_trained(
    methods: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run(methods, lambda: pytest.fail("trained"), **options)


def test_what_cannot_be_copied_is_named_with_the_remedy() -> None:
    module = Two()
    module.lock = threading.Lock()  # type: ignore[assignment]
    (outcome,) = run(["sum"], module).outcomes
    assert "`module` must be copied for each run, but Two cannot be" in outcome.error
    assert outcome.error.endswith("Pass a function that builds it.")


def test_a_function_builds_the_trainer_and_the_module_brings_its_data() -> None:
    class WithData(Two):
        def train_dataloader(self) -> Any:
            return loader()

    def build(module: Any, **arguments: Any) -> Any:
        assert isinstance(module, WithData)
        return L.Trainer(**arguments, accelerator="cpu", limit_train_batches=3)

    found = compare(["sum", "upgrad"], WithData, trainer=build, max_epochs=2)
    assert not found.errors()
    assert all(run.about["steps"] == "6" for run in (each.run for each in found.outcomes))


def test_several_devices_are_refused() -> None:
    trainer = {**TRAINER, "devices": 2, "strategy": "ddp_spawn"}
    found = compare(["sum"], Two, loader(), trainer=trainer)
    assert "must use one device, got 2. Set devices=1" in found.outcomes[0].error


def test_options_of_the_module_are_kept() -> None:
    class Flagged(JDModuleMixin, Two):  # type: ignore[misc]
        jacobian_descent = {"aggregator": "mgda", "nonfinite": "skip"}  # noqa: RUF012

    (outcome,) = run(["sum"], Flagged).outcomes
    assert not outcome.error
    for options, expected in (({}, "nonfinite='skip'"), ({"rows": "tasks"}, "rows='tasks'")):
        plan = plan_of(Flagged, loader(), None, 1, TRAINER, options)
        trainer, module, _ = plan.build(0)
        descent = plan.descent(Job("sum", "sum", 0), surfaces_for(module), trainer, module)
        assert repr(descent) == f"JacobianDescent(Sum(), {expected})"


def test_the_configuration_of_a_program_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(EXAMPLES / "cli.py"), "fit", "--config", str(EXAMPLES / "cli.yaml")]
    output = tmp_path / "page.html"
    options = ["--folder", str(tmp_path / "runs"), "--output", str(output)]
    assert cli.main(["compare", *options, "sum,upgrad", *words, "--trainer.max_epochs=1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:5] == ["method", "loss", "sum", "loss", "product"]
    assert [line.split()[0] for line in lines[1:3]] == ["sum", "upgrad"]
    assert "<polyline" in output.read_text()

    plan = plan_of_script(words[0], words[1:])
    trainer, module, _ = plan.build(4)
    descent = plan.descent(Job("sum", "sum", 4), surfaces_for(module), trainer, module)
    assert repr(descent) == "JacobianDescent(Sum(), params='shared', accumulation='step')"
    assert trainer.accumulate_grad_batches == 2
    assert not torch.equal(module.shared[0].weight, plan.build(5).module.shared[0].weight)
    assert torch.equal(module.shared[0].weight, plan.build(4).module.shared[0].weight)


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "must call LightningCLI when it is run"), (None, "must be a Python file, got")],
)
def test_other_programs_are_refused(
    text: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "program.py"
    if text is not None:
        script.write_text(text)
    assert cli.main(["compare", "sum", str(script)]) == 1
    assert message in capsys.readouterr().err


def test_an_outcome_that_is_half_written_does_not_count(tmp_path: Path) -> None:
    assert Outcome.read(tmp_path) is None
    (tmp_path / "outcome.json").write_text('{"label":')
    assert Outcome.read(tmp_path) is None
