"""The study of the regularisation: on tiny files of MNIST's format, end to end."""

import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_jd.errors import ArgumentError, MissingDependencyError
from lightning_jd.experiments import _training
from lightning_jd.experiments import regularisation as module
from lightning_jd.experiments._store import Store
from lightning_jd.experiments._training import Outcome, Run, train
from lightning_jd.experiments.regularisation import regularisation

RUN = Run("mnist", "upgrad", 1e-4, 0.05, seed=1, epochs=2, size=16, batch=8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(40) % 10
    images = torch.randint(0, 50, (40, 28, 28), generator=generator)
    images[torch.arange(40), labels] += 200  # the label is the bright line
    for name, entries in (("images-idx3", images), ("labels-idx1", labels)):
        header = bytes([0, 0, 8, entries.ndim]) + struct.pack(f">{entries.ndim}I", *entries.shape)
        body = bytes(entries.flatten().tolist())
        (tmp_path / f"train-{name}-ubyte").write_bytes(header + body)
    return tmp_path


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(16, 1, 28, 28, generator=generator), torch.arange(16) % 10


def test_a_run_is_decided_by_its_settings(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    first = train(RUN, "mnist", *batch)
    torch.manual_seed(99)  # the global state must not matter
    assert train(RUN, "mnist", *batch) == first
    assert len(first.losses) == 4
    assert not first.diverged
    assert first.losses[-1] < first.losses[0]


def test_mean_is_plain_sgd_on_the_mean_loss(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    run = Run("mnist", "mean", None, 0.05, seed=1, epochs=2, size=16, batch=8)
    images, labels = batch
    torch.manual_seed(1)
    model = _training.paper_cnn("mnist")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    order = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(2):
        for chosen in torch.randperm(16, generator=order).split(8):
            loss = torch.nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    outcome = train(run, "mnist", images, labels)
    assert outcome.losses == pytest.approx(losses, rel=1e-4)
    assert outcome.largest_weights == pytest.approx([1.0] * 4)


def test_a_diverging_run_ends_early_with_an_infinite_area(
    batch: tuple[torch.Tensor, torch.Tensor],
) -> None:
    run = Run("mnist", "mean", None, 1e6, seed=1, epochs=2, size=16, batch=8)
    outcome = train(run, "mnist", *batch)
    assert outcome.diverged
    assert outcome.area == float("inf")
    assert len(outcome.losses) < 4


def test_a_run_that_diverges_at_once_has_no_steps(
    batch: tuple[torch.Tensor, torch.Tensor],
) -> None:
    images, labels = batch
    outcome = train(RUN, "mnist", images * float("nan"), labels)
    assert outcome == Outcome([], [], [], [], diverged=True)


def small(folder: Path, **arguments: Any) -> Path:
    settings = {"regs": [1e-3], "seeds": 1, "epochs": 1, "size": 32, "halvings": 0}
    regularisation(data=str(folder), **(settings | arguments), output=str(folder / "out"))
    return folder / "out"


@pytest.mark.slow
def test_the_command_writes_table_figure_and_runs_and_resumes(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = small(folder)
    report = json.loads((output / "regularisation.json").read_text())
    assert [row["setting"] for row in report["rows"]] == ["mean", "reg 1e-3"]
    assert "torch" in report["environment"]
    assert (output / "regularisation.png").read_bytes().startswith(b"\x89PNG")
    assert "area" in capsys.readouterr().out
    runs = (output / "runs.jsonl").read_text()

    def must_not_run(*_: object) -> Outcome:
        raise AssertionError("a finished run was repeated")

    monkeypatch.setattr(module, "train", must_not_run)
    small(folder)
    assert (output / "runs.jsonl").read_text() == runs


def test_an_interrupted_study_keeps_what_is_finished(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished: list[Run] = []

    def fake(run: Run, *_: object) -> Outcome:
        if len(finished) == 3:
            raise KeyboardInterrupt
        finished.append(run)
        return Outcome([run.lr], [1.0], [0.0], [0.0], diverged=False)

    monkeypatch.setattr(module, "train", fake)
    with pytest.raises(KeyboardInterrupt):
        small(folder)
    store = Store(folder / "out" / "runs.jsonl")
    assert len(store) == 3
    assert all(run in store for run in finished)


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    outcome = Outcome([1.0], [1.0], [0.0], [0.0], diverged=False)
    Store(path).add(RUN, outcome)
    path.write_text(path.read_text() + '{"run": {"datas')
    store = Store(path)
    assert len(store) == 1
    other = Run("mnist", "mean", None, 0.1, seed=1, epochs=1)
    store.add(other, outcome)
    assert Store(path)[other] == outcome


def test_a_diverged_run_survives_the_file(tmp_path: Path) -> None:
    Store(tmp_path / "runs.jsonl").add(RUN, Outcome([], [], [], [], diverged=True))
    assert Store(tmp_path / "runs.jsonl")[RUN].area == float("inf")


def test_a_foreign_file_is_not_taken_for_results(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text('{"something": "else"}\n')
    with pytest.raises(ArgumentError, match=r"line 1 of .*runs.jsonl is not one .*another folder"):
        Store(path)


@pytest.mark.parametrize("arguments", [{"seeds": 0}, {"regs": []}])
def test_nothing_to_do_is_refused(arguments: dict[str, Any], folder: Path) -> None:
    with pytest.raises(ArgumentError, match="`seeds` and `regs` must not be zero or empty"):
        small(folder, **arguments)


def test_without_matplotlib_the_extra_is_named_before_the_work(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'lightning-jd\[plot\]'"):
        small(folder)
    assert not (folder / "out").exists()


def test_diverged_settings_are_drawn_and_tabulated(tmp_path: Path) -> None:
    diverged = Outcome([], [], [], [], diverged=True)
    fine = Outcome([2.0, 1.0], [1.0, 3.0], [0.0, -0.1], [0.0, 0.5], diverged=False)
    runs = [(RUN, diverged), (RUN, diverged)]
    row = module._row(runs)
    assert (row["area"], row["error"], row["diverged"]) == (None, None, 2)
    path = module.draw({0.0: runs, None: [(RUN, fine)]}, "title", tmp_path / "figure.png")
    assert path.read_bytes().startswith(b"\x89PNG")
