"""``log=True``: CSV files and TensorBoard events are read back and compared with the reports."""

import csv
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger

from lightning_jd.errors import ArgumentError
from lightning_jd.metrics import conflict_summary, noise_and_signal
from lightning_jd.surfaces import JacobianDescent, JDReport
from tests.helpers.lightning import Regression, fit
from tests.helpers.two_processes import run_in_two_processes

SCALARS = {
    "jd/similarity_to_mean",
    "jd/violation_share",
    "jd/violation_worst_cosine",
    "jd/mean_violation_share",
    "jd/mean_violation_worst_cosine",
    "jd/conflict_rate",
    "jd/norm_imbalance",
    "jd/weight_entropy",
    "jd/largest_weight",
    "jd/stationarity_distance",
    "jd/time_share",
    "jd/weights_time_share",
}
TASKS = {f"jd/{kind}/{task}" for kind in ("weight", "norm", "loss") for task in "abc"}


class Witness(Callback):
    """Keeps the report of every batch, as a user could."""

    def __init__(self, descent: JacobianDescent) -> None:
        self.descent = descent
        self.reports: list[Any] = []

    def on_train_batch_end(self, *_: Any) -> None:
        self.reports.append(self.descent.report)


def rows_of(folder: Path) -> list[dict[str, str]]:
    with open(folder / "metrics.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def logged(form: str = "tasks", aggregator: Any = "upgrad", **options: Any) -> list[dict[str, str]]:
    log = options.pop("log", {"every_n_steps": 2})
    groups = options.pop("groups", None)
    logger = CSVLogger("runs")
    descent = JacobianDescent(aggregator, groups=groups, log=log)
    module = options.pop("module", None) or Regression(form)
    fit(module, callbacks=[descent], logger=logger, **options)
    return rows_of(Path(logger.log_dir))


def test_csv_holds_the_metrics_of_the_reports() -> None:
    logger = CSVLogger("runs")
    descent = JacobianDescent("upgrad", log={"every_n_steps": 2})
    witness = Witness(descent)
    fit(Regression("tasks"), callbacks=[descent, witness], logger=logger)
    rows = rows_of(Path(logger.log_dir))
    assert [int(row["step"]) for row in rows] == [1, 3, 5, 7, 9, 11]
    assert set(rows[0]) >= SCALARS | TASKS
    for row in rows:
        report = witness.reports[int(row["step"])]
        expected = conflict_summary(report.gramian, report.weights, stationarity=True).to_dict()
        found = {name: float(row[f"jd/{name}"]) for name in expected}
        assert found == pytest.approx(expected)
        weights = [float(row[f"jd/weight/{task}"]) for task in "abc"]
        assert weights == pytest.approx(report.weights.tolist())
        assert 0 < float(row["jd/weights_time_share"]) <= float(row["jd/time_share"]) <= 1


@pytest.mark.slow
def test_tensorboard_events_are_read_back() -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    logger = TensorBoardLogger("runs")
    descent = JacobianDescent("upgrad", log={"every_n_steps": 3, "figures": True})
    fit(Regression("tasks"), callbacks=[descent], logger=logger)
    events = accumulator.EventAccumulator(logger.log_dir)
    events.Reload()
    assert set(events.Tags()["scalars"]) >= SCALARS | TASKS
    assert [event.step for event in events.Scalars("jd/conflict_rate")] == [2, 5, 8, 11]
    assert set(events.Tags()["images"]) == {"jd/history", "jd/cosines", "jd/weights"}
    image = events.Images("jd/history")[-1]
    assert image.encoded_image_string.startswith(b"\x89PNG")
    assert image.width > 600


def test_the_interval_is_the_trainers_unless_given() -> None:
    rows = logged(log=True, log_every_n_steps=4)
    assert [int(row["step"]) for row in rows] == [3, 7, 11]


@pytest.mark.parametrize("form", ["instances", "matrix"])
def test_instances_are_not_logged_one_by_one(form: str) -> None:
    columns = set(logged(form)[0])
    assert columns >= SCALARS
    assert not any(name.startswith(("jd/weight/", "jd/loss/", "jd/norm/")) for name in columns)


def test_noise_and_signal_are_those_of_the_mean_of_the_examples() -> None:
    descent, logger = JacobianDescent("mean", log={"every_n_steps": 1}), CSVLogger("runs")
    witness = Witness(descent)
    fit(Regression("instances"), callbacks=[descent, witness], logger=logger, max_epochs=1)
    for row, report in zip(rows_of(Path(logger.log_dir)), witness.reports, strict=True):
        noise, signal = noise_and_signal(report.gramian)
        assert float(row["jd/gradient_noise"]) == pytest.approx(float(noise) / 4)
        assert float(row["jd/gradient_signal"]) == pytest.approx(float(signal))


def test_groups_are_logged_on_request() -> None:
    log = {"every_n_steps": 2, "per_group": True}
    row = logged(groups="layer", log=log)[0]
    assert {"jd/group/net.0/conflict_rate", "jd/group/net.2/similarity_to_mean"} <= set(row)
    assert "jd/similarity_to_mean" in row  # of the whole update
    assert not any(name.startswith("jd/group/") for name in logged(log=log)[0])


def test_nothing_is_logged_unless_asked_for() -> None:
    logger = CSVLogger("runs")
    run = fit(Regression("tasks"), callbacks=[JacobianDescent()], logger=logger)
    assert not any(name.startswith("jd/") for name in run.callback_metrics)
    assert not (Path(logger.log_dir) / "metrics.csv").exists()


def test_the_progress_bar_shows_three_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    log = {"every_n_steps": 1, "progress_bar": True}
    bar = TQDMProgressBar(refresh_rate=1)
    run = fit(
        Regression("tasks"),
        callbacks=[JacobianDescent(log=log), bar],
        enable_progress_bar=True,
    )
    shown = {"jd/similarity_to_mean", "jd/conflict_rate", "jd/violation_share"}
    assert shown <= set(run.progress_bar_metrics)
    assert "jd/conflict_rate=" in "".join(capsys.readouterr())


class Gallery(Logger):
    """Takes figures by the method that Weights & Biases' logger has."""

    name = "gallery"
    version = 0

    def __init__(self) -> None:
        super().__init__()
        self.images: list[tuple[str, int]] = []

    def log_image(self, key: str, images: list[Any], step: int | None = None) -> None:
        for figure in images:
            figure.savefig(f"{key.replace('/', '_')}.png")
        self.images.append((key, step))

    def log_hyperparams(self, *_: Any, **__: Any) -> None: ...

    def log_metrics(self, *_: Any, **__: Any) -> None: ...


@pytest.mark.slow
def test_figures_go_to_loggers_with_log_image_and_to_no_others() -> None:
    gallery = Gallery()
    log = {"every_n_steps": 1, "figures": True}
    fit(
        Regression("instances"),
        callbacks=[JacobianDescent(log=log)],
        logger=[CSVLogger("runs"), gallery],
    )
    assert gallery.images == [("jd/history", 6), ("jd/history", 12)]


def test_logging_does_not_change_the_training() -> None:
    modules = [Regression("tasks"), Regression("tasks")]
    for module, log in zip(modules, (False, {"every_n_steps": 1, "figures": True}), strict=True):
        fit(module, callbacks=[JacobianDescent("upgrad", log=log)])
    for a, b in zip(*(module.parameters() for module in modules), strict=True):
        assert torch.equal(a, b)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ArgumentError, match="`every_n_steps` must be at least 1, got 0"):
        JacobianDescent(log={"every_n_steps": 0})
    with pytest.raises(ArgumentError, match="`log` must be True, False or a dict with some of"):
        JacobianDescent(log={"every": 3})


def log_and_report(rank: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    for form in ("tasks", "instances"):
        fit(
            Regression(form),
            callbacks=[JacobianDescent(log={"every_n_steps": 1}), JDReport(every_n_steps=1)],
            logger=CSVLogger("runs", name=form, version=0),
            strategy="ddp",
            devices=2,
            max_epochs=1,
        )


@pytest.mark.slow
def test_two_processes_write_one_log_and_one_page(tmp_path: Path) -> None:
    run_in_two_processes(log_and_report, tmp_path)
    for form in ("tasks", "instances"):
        written = tmp_path / "runs" / form / "version_0"
        rows = rows_of(written)
        assert [int(row["step"]) for row in rows] == [0, 1, 2]
        assert SCALARS - {"jd/weights_time_share"} <= set(rows[0])
        assert (written / "jd_report.html").exists()
