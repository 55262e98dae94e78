"""JDReport beside a real Trainer: what it records, when it writes, and what it refuses."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor

from lightning_jd.report import Run, read_run
from lightning_jd.surfaces import JacobianDescent, JDReport
from tests.helpers.lightning import Regression, fit


def steps(run: Run, name: str = "conflict_rate") -> list[float]:
    return [x for x, _, _ in run.tracks[name].points()]


def test_a_fit_leaves_a_page_and_its_numbers(tmp_path: Path) -> None:
    jd_report = JDReport(str(tmp_path / "out"), every_n_steps=2)
    fit(Regression("tasks"), callbacks=[jd_report, JacobianDescent("upgrad")])
    run = read_run(tmp_path / "out")
    assert run == jd_report.run
    assert run.aggregator == "upgrad"
    assert steps(run) == [0, 1, 3, 5, 7, 9, 11]
    assert list(run.members("loss/")) == list(run.members("weight/")) == ["a", "b", "c"]
    assert run.cosines is not None
    assert [row[i] for i, row in enumerate(run.cosines.matrix)] == pytest.approx([1, 1, 1])
    assert list(run.members("worse/")) == ["a", "b", "c"]
    assert run.method == {"protects": True, "kind": "tasks", "reg": 1e-4, "relative_to": "row"}
    assert run.about["module"] == "Regression"
    assert run.about["optimizer"] == "SGD (lr 0.05)"
    assert (run.about["batch size"], run.about["steps"]) == ("4", "12")
    assert "<svg" in (tmp_path / "out" / "jd_report.html").read_text(encoding="utf-8")


def test_the_cost_is_measured_beside_plain_passes(tmp_path: Path) -> None:
    jd_report = JDReport(str(tmp_path), every_n_steps=1)
    fit(Regression("tasks"), callbacks=[jd_report, JacobianDescent("upgrad")])
    assert steps(jd_report.run, "cost") == [3, 4, 5, 6, 7]
    assert 0.3 < jd_report.run.mean("cost") < 30


def test_the_strategy_and_the_flag_are_found(tmp_path: Path) -> None:
    from lightning_jd.surfaces import JDModuleMixin, JDStrategy

    class Flagged(JDModuleMixin, Regression):
        jacobian_descent = "mgda"

    fit(Flagged("tasks"), callbacks=[JDReport(str(tmp_path / "flag"), 1)])
    assert read_run(tmp_path / "flag").aggregator == "mgda"
    strategy = JDStrategy("mean")
    fit(Regression("tasks"), strategy=strategy, callbacks=[JDReport(str(tmp_path / "strategy"), 1)])
    assert read_run(tmp_path / "strategy").aggregator == "mean"


def test_a_run_that_fails_is_written(tmp_path: Path) -> None:
    class Fails(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 4:
                raise RuntimeError("out of luck")

    callbacks = [JacobianDescent(), JDReport(str(tmp_path), 1), Fails()]
    with pytest.raises(RuntimeError, match="out of luck"):
        fit(Regression("tasks"), callbacks=callbacks)
    assert steps(read_run(tmp_path)) == [0, 1, 2, 3]


def test_a_resumed_run_continues_its_curves(tmp_path: Path) -> None:
    def callbacks(folder: str) -> list[Any]:
        return [JacobianDescent(), JDReport(str(tmp_path / folder), 1)]

    fit(Regression("tasks"), callbacks=callbacks("whole"))
    first = fit(Regression("tasks"), callbacks=callbacks("first"), max_epochs=1)
    checkpoint = tmp_path / "after_one_epoch.ckpt"
    first.save_checkpoint(checkpoint)
    fit(Regression("tasks"), ckpt_path=checkpoint, callbacks=callbacks("second"))
    expected, found = read_run(tmp_path / "whole"), read_run(tmp_path / "second")
    assert steps(found) == steps(expected) == list(range(12))
    for name in ("conflict_rate", "weight/a", "loss/c"):
        assert found.mean(name) == pytest.approx(expected.mean(name))
    assert expected.cosines is not None
    assert found.cosines is not None
    assert found.cosines.matrix[0] == pytest.approx(expected.cosines.matrix[0])


def test_a_task_that_appears_later_is_in_the_heat_map(tmp_path: Path) -> None:
    class Growing(Regression):
        def in_form(self, errors: Tensor) -> Any:
            loss = super().in_form(errors)["loss"]
            if self.global_step < 3:
                loss["a"] = None
            return {"loss": loss}

    fit(Growing("tasks"), callbacks=[JacobianDescent(), JDReport(str(tmp_path), 1)])
    run = read_run(tmp_path)
    assert run.cosines is not None
    assert list(run.cosines.names) == ["b", "c", "a"]
    assert steps(run, "loss/a") == list(range(3, 12))


def test_reporting_does_not_change_the_training(tmp_path: Path) -> None:
    plain, reported = Regression("tasks"), Regression("tasks")
    fit(plain, callbacks=[JacobianDescent()])
    fit(reported, callbacks=[JacobianDescent(), JDReport(str(tmp_path), 1)])
    for a, b in zip(plain.parameters(), reported.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("kind", ["file", "impossible"])
def test_a_folder_that_cannot_be_written_is_a_warning_at_the_start(
    kind: str, tmp_path: Path
) -> None:
    folder = "/proc/nowhere"
    if kind == "file":
        folder = str(tmp_path / "file")
        Path(folder).write_text("not a folder")
    module = Regression("tasks")
    with pytest.warns(RuntimeWarning, match="JDReport cannot write to its folder '"):
        run = fit(module, callbacks=[JacobianDescent(), JDReport(folder)])
    assert run.global_step == 12  # the training went on
