"""Fronts: the runs behind the points, the volume below them, and the page."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_jd import JacobianDescent, cli, compare, front
from lightning_jd.errors import ArgumentError, UnknownNameError
from lightning_jd.report import Point
from lightning_jd.report._scatter import scatter_chart
from lightning_jd.surfaces.fronts import _with_preference, spread
from tests.surfaces.test_compare import EXAMPLES, TRAINER, Two, loader


class Opposed(Two):
    """One number for two targets: every preference has another solution."""

    def losses(self, x: Tensor) -> Tensor:
        y = self.net(x)[:, 0]
        return torch.stack([(y - x[:, 0]).square().mean(), (y + x[:, 0]).square().mean()])

    def validation_step(self, x: Tensor, batch_idx: int) -> None:
        first, second = self.losses(x)
        self.log_dict({"val_first": first, "val_second": second})


class Three(Two):
    def training_step(self, x: Tensor, batch_idx: int) -> Any:
        y = self.net(x)
        return {"loss": {str(i): (y[:, i % 2] - i).square().mean() for i in range(3)}}


AXES = ["val_first", "val_second"]


def run(methods: Any, module: Any = Opposed, **options: Any) -> Any:
    options = {"trainer": TRAINER, "workers": 1, "preferences": 3} | options
    return front(methods, module, loader(), loader(), **options)


def test_points_are_those_of_comparisons_with_the_same_weights() -> None:
    found = run(["sum", "upgrad"], objectives=AXES)
    methods = {
        "only first": {"name": "constant", "weights": [1.0, 0.0]},
        "sum 0.25/0.75": {"name": "constant", "weights": [0.25, 0.75]},
        "upgrad 0.75/0.25": {"name": "upgrad", "preference": [0.75, 0.25]},
    }
    direct = compare(methods, Opposed, loader(), loader(), trainer=TRAINER)
    for outcome in direct.outcomes:
        assert not outcome.error
        assert found.points()[outcome.label] == [[outcome.metrics[name] for name in AXES]]
    assert len(found.outcomes) == 2 + 3 + 3


def test_hypervolumes_are_areas_below_the_points_for_each_seed() -> None:
    found = run("sum", objectives=AXES, seeds=2)
    every = [point for runs in found.points().values() for point in runs]
    low, high = ([f(axis) for axis in zip(*every, strict=True)] for f in (min, max))
    for seed in range(2):
        mine = sorted(runs[seed] for name, runs in found.points().items() if name[:3] == "sum")
        area, x = 0.0, high[0]
        for point in reversed(mine):  # from right to left: strips that only these points dominate
            best = min(other[1] for other in mine if other[0] <= point[0])
            area += (x - point[0]) * (high[1] - best)
            x = point[0]
        box = (high[0] - low[0]) * (high[1] - low[1])
        assert found.hypervolumes()["sum"][seed] == pytest.approx(area / box)


def test_a_reference_and_the_direction_are_those_of_the_user() -> None:
    found = run("sum", preferences=[[1, 1]], reference=[20.0, 30.0])
    ((first, second),) = found.points()["sum 0.5/0.5"]
    low = [min(axis) for axis in zip(*(p for r in found.points().values() for p in r), strict=True)]
    box = (20 - low[0]) * (30 - low[1])
    expected = (20 - first) * (30 - second) / box
    assert found.hypervolumes()["sum"] == pytest.approx([expected])
    assert found.objectives == ["loss first", "loss second"]
    assert "Down and left is better" in found.page()
    upwards = run("sum", preferences=[[1, 1]], objectives=AXES, higher_is_better=True)
    assert "Up and right is better" in upwards.page()


def test_preferences_by_name_are_in_any_order_and_on_any_scale() -> None:
    by_name = run("stch", preferences=[{"second": 3, "first": 1}])
    in_order = run("stch", preferences=[[0.25, 0.75]])
    assert by_name.points() == in_order.points()
    assert "stch 0.25/0.75" in by_name.points()


def test_processes_and_a_second_call_find_the_same(tmp_path: Path) -> None:
    options = {"objectives": AXES, "preferences": 2, "folder": tmp_path}
    found = run(["sum"], workers=2, **options)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/outcome.json")}
    assert len(before) == 4
    again = run(["sum", "stch"], **options)
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    assert found.points().items() <= again.points().items()


def test_the_page_has_all_points_and_pairs_of_three_objectives() -> None:
    found = run(["sum", "upgrad"], Three, preferences=1)
    text = found.page("Three <tasks>")
    assert "<h1>Three &lt;tasks&gt;</h1>" in text
    assert text.count('<svg class="scatter"') == 3
    assert text.count("<circle") == 3 * 2
    assert text.count('<rect class="corner"') == 3 * 3
    assert "<script" not in text
    assert [row[0] for row in found.summary.rows] == ["sum", "upgrad", "only 0", "only 1", "only 2"]


def test_a_run_that_fails_is_told_and_left_out() -> None:
    class Fragile(Opposed):
        def on_train_start(self) -> None:
            super().on_train_start()
            descents = [c for c in self.trainer.callbacks if isinstance(c, JacobianDescent)]
            if descents[0].settings.aggregator.name == "stch":
                raise ValueError("no stch today")

    found = run(["sum", "stch"], Fragile, preferences=1)
    assert [row[0] for row in found.summary.rows] == ["sum", "only first", "only second"]
    assert "stch 0.5/0.5  seed 0: ValueError: no stch today" in repr(found)


@pytest.mark.parametrize(
    ("methods", "options", "error", "message"),
    [
        ("mgda", {}, ArgumentError, r"must take a `preference`, or be 'sum'.*'upgrad'"),
        ("upgrd", {}, UnknownNameError, "Did you mean 'upgrad'"),
        ("sum", {"preferences": [[1, 0]]}, ArgumentError, "one positive weight for each of"),
        ("sum", {"preferences": [[1, 1, 1]]}, ArgumentError, "one positive weight for each of"),
        ("sum", {"preferences": [{"left": 1}]}, ArgumentError, "one positive weight for each of"),
        ("sum", {"preferences": []}, ArgumentError, "must be at least one, got none"),
        ("sum", {"preferences": 1, "objectives": ["f1"]}, ArgumentError, r"must be validation.*f1"),
    ],
)
def test_wrong_arguments(
    methods: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run(methods, **options)


def test_losses_of_examples_have_no_front() -> None:
    class Examples(Two):
        def training_step(self, x: Tensor, batch_idx: int) -> Any:
            return self.net(x).square().mean(dim=1)

    with pytest.raises(ArgumentError, match="needs 2 to 8 named losses from `training_step`"):
        run("sum", Examples)


def test_every_method_with_a_preference_has_a_front() -> None:
    names = _with_preference()
    assert {"upgrad", "dualproj", "config", "stch", "cosmos", "pbi"} <= set(names)
    found = run(names, preferences=[[1, 4]])
    # The one that needs two samples of every loss is told, as everywhere.
    assert set(found.errors()) == {"sdmgrad 0.2/0.8"}
    assert set(found.hypervolumes()) == set(names) - {"sdmgrad"}


@pytest.mark.parametrize("tasks", [2, 3, 4])
@pytest.mark.parametrize("count", [1, 2, 5, 11])
def test_preferences_are_spread_over_the_simplex(count: int, tasks: int) -> None:
    found = torch.tensor(spread(count, tasks))
    assert len(found) == count if tasks == 2 else len(found) >= count
    assert torch.allclose(found.sum(dim=1), torch.ones(len(found)))
    assert (found > 0).all()
    assert len({tuple(row) for row in found.tolist()}) == len(found)
    assert {tuple(row) for row in found.flip(1).tolist()} == {tuple(r) for r in found.tolist()}


def test_better_points_are_further_down_and_left_in_the_drawing() -> None:
    line = [Point(0.0, 3.0), Point(1.0, 1.0, 0.1, 0.2, "<middle>"), Point(3.0, 0.0)]
    drawing = scatter_chart({"a": line}, [Point(0.0, 4.0, label="only a")], "x & y", "z")
    places = [tuple(map(float, at)) for at in re.findall(r'<circle cx="(.*?)" cy="(.*?)"', drawing)]
    assert all(left[0] < right[0] for left, right in pairwise(places))
    assert all(upper[1] < lower[1] for upper, lower in pairwise(places))  # down the page
    assert "&lt;middle&gt;" in drawing
    assert "x &amp; y" in drawing
    assert ">only a</text>" in drawing


def test_the_command_draws_the_front_of_a_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(EXAMPLES / "cli.py"), "--config", str(EXAMPLES / "cli.yaml")]
    output = tmp_path / "front.html"
    options = ["--preferences", "2", "--workers", "1", "--output", str(output)]
    assert cli.main(["front", *options, "sum,stch", *words, "--trainer.max_epochs=1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if line.startswith(("sum", "stch", "only"))]
    assert [row.split("  ")[0] for row in rows] == ["sum", "stch", "only sum", "only product"]
    assert output.read_text().count("<circle") == 4
