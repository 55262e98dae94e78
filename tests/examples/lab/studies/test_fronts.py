"""The study of fronts, on tiny data: what is trained, judged, stored and drawn."""

from pathlib import Path

import pytest
import torch

from examples.lab.data.multitask import Multitask, Part, Task
from examples.lab.report import Report
from examples.lab.studies.fronts import Learner, fronts
from lightning_jd.errors import ArgumentError, UnknownNameError


@pytest.mark.filterwarnings("ignore:.*overflow.*")
def test_the_study_writes_a_table_a_figure_and_a_page(digits: Path, tmp_path: Path) -> None:
    folder = tmp_path / "found"
    for _ in range(2):  # the second time from what is stored
        fronts(
            *("multimnist", str(digits), ["sum", "upgrad"]),
            preferences=1,
            seeds=2,
            epochs=1,
            size=32,
            workers=1,
            output=str(folder),
        )
        stored = {p: p.stat().st_mtime_ns for p in folder.glob("runs/*/outcome.json")}
        assert len(stored) == 2 * (2 + 2)
    rows = Report.read(folder / "fronts.json").rows
    assert [row["method"] for row in rows] == ["sum", "upgrad", "only left", "only right"]
    assert (folder / "fronts.png").read_bytes().startswith(b"\x89PNG")
    assert "best left" in (folder / "fronts.html").read_text()
    assert max(path.stat().st_mtime_ns for path in stored) == max(stored.values())


def test_three_answers_of_a_table_are_three_losses_and_metrics() -> None:
    draw = torch.Generator().manual_seed(0)
    tasks = tuple(Task(name, "binary") for name in "abc")
    targets = {name: (torch.rand(20, generator=draw) > 0.5).float() for name in "abc"}
    inputs = (torch.randn(20, 7, generator=draw), torch.randint(0, 5, (20, 4), generator=draw))
    part = Part(inputs, targets)
    learner = Learner(Multitask(tasks, part, part, part), lr=0.1)
    losses = learner.training_step(part, 0)["loss"]
    outputs = learner.network(*inputs)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(
        outputs["b"][:, 0], targets["b"]
    )
    assert list(losses) == list("abc")
    assert torch.equal(losses["b"], expected)


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="`dataset` must be one of 'census', 'multimnist'"):
        fronts("mnist", output=str(tmp_path))
    with pytest.raises(UnknownNameError, match="Did you mean 'upgrad'"):
        fronts(methods="upgrd", output=str(tmp_path))
    with pytest.raises(ArgumentError, match="`lr` must be positive, got 0"):
        fronts(lr=0, output=str(tmp_path))
