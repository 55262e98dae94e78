"""From recorded numbers to a page: tracks, files, the rules of the verdict, and escaped names."""

import json
import math
import random
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from lightning_jd.errors import ArgumentError
from lightning_jd.metrics import PairwiseCosine, conflict_summary
from lightning_jd.report import Cosines, Run, Track, page, read_run, report, verdict

NASTY = "<script>alert('x')</script> & \"quotes\""


def recorded(**values: float) -> Run:
    run = Run("upgrad")
    for step in range(10):
        run.add(step, values)
    return run


def full_run(steps: int = 300) -> Run:
    noise = random.Random(0)
    run = Run("upgrad", cosines=Cosines(["depth", NASTY], [[1.0, -0.5], [-0.5, None]]))
    for step in range(steps):
        values = {
            "loss/depth": math.exp(-step / 40),
            f"loss/{NASTY}": 2 + noise.random(),
            "weight/depth": 0.5,
            f"weight/{NASTY}": noise.random(),
            "norm/depth": 1.0,
            f"norm/{NASTY}": 5.0,
            "similarity_to_mean": noise.uniform(0.5, 1),
            "violation_share": 0.0,
            "mean_violation_share": 0.5,
            "violation_worst_cosine": 0.1,
            "mean_violation_worst_cosine": -0.9,
            "conflict_rate": 1.0,
            "norm_imbalance": 2.2,
            "stationarity_distance": 0.3,
            "time_share": 0.6,
            "weights_time_share": 0.02,
        }
        run.add(step, values)
    return run


@pytest.mark.parametrize("steps", [1, 256, 257, 3000])
def test_a_track_keeps_mean_and_spread_in_bounded_memory(steps: int) -> None:
    track = Track()
    values = [random.Random(step).gauss(1, 2) for step in range(steps)]
    for step, value in enumerate(values):
        track.add(step, value)
    assert len(track.points()) <= 256
    assert len(track.points(most=10)) <= 10
    assert track.mean() == pytest.approx(sum(values) / steps)
    (x, mean, spread), *rest = track.points(most=1)
    assert not rest
    assert x == pytest.approx((steps - 1) / 2, abs=track.width)
    assert mean == pytest.approx(track.mean())
    variance = sum((value - mean) ** 2 for value in values) / steps
    assert spread == pytest.approx(math.sqrt(variance), abs=1e-6)


def test_values_that_are_not_finite_leave_a_gap() -> None:
    track = Track()
    for step, value in enumerate([1.0, math.nan, math.inf, 3.0]):
        track.add(step, value)
    assert track.points() == [(0.0, 1.0, 0.0), (3.0, 3.0, 0.0)]
    assert math.isnan(Track().mean())


def test_a_run_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    run = full_run()
    (tmp_path / "deep" / "er").mkdir(parents=True)
    run.write(tmp_path / "deep" / "er" / "jd_run.json")
    assert read_run(tmp_path) == run


def test_logged_values_are_a_run_too(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(
        "epoch,jd/conflict_rate,jd/weight/a,step,val_loss\n0,0.5,0.25,9,\n0,,,9,1.5\n0,1.0,0.75,19,\n"
    )
    run = read_run(tmp_path)
    assert run.mean("conflict_rate") == 0.75
    assert list(run.members("weight/")) == ["a"]
    assert [x for x, _, _ in run.tracks["weight/a"].points()] == [9.0, 19.0]


def test_tensorboard_events_are_a_run_too(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "version_0")) as writer:
        for step in range(3):
            writer.add_scalar("jd/conflict_rate", step, step)
            writer.add_scalar("loss", 1.0, step)
    run = read_run(tmp_path)
    assert list(run.tracks) == ["conflict_rate"]
    assert run.mean("conflict_rate") == 1


CONFLICT = {
    "mean_violation_share": 0.3, "conflict_rate": 0.5, "norm_imbalance": 10,
    "similarity_to_mean": 0.5, "violation_share": 0.0, "time_share": 0.9,
    "weights_time_share": 0.3, "cost": 1.5,
}  # fmt: skip
SAME = CONFLICT | {"similarity_to_mean": 0.99999, "violation_share": 0.3}


@pytest.mark.parametrize(
    ("values", "levels"),
    [
        (CONFLICT, ["fact"] * 5),  # large numbers are no reason to act
        (SAME, ["fact"] * 3 + ["act", "fact"]),  # but to do nothing about them is one
        (SAME | {"mean_violation_share": 0.0, "violation_share": 0.0}, ["fact"] * 5),
        ({}, ["unknown"] * 5),
        ({"time_share": 0.7}, ["unknown"] * 4 + ["fact"]),
    ],
)
def test_the_verdict_follows_its_rules(values: dict[str, float], levels: list[str]) -> None:
    found = verdict(recorded(**values))
    assert [finding.level for finding in found] == levels
    assert all(bool(finding.remedy) == (finding.level == "act") for finding in found)


def test_a_task_that_is_not_protected_is_red_with_its_remedy() -> None:
    norms = {"norm/price": 1000.0, "norm/kind": 1.0}
    run = recorded(**SAME, **norms, **{"worse/price": 0.0, "worse/kind": 0.45})
    run.method = {"protects": True, "reg": 1e-4, "relative_to": "trace"}
    found = verdict(run)[2]
    assert found.level == "act"
    assert "does not protect 'kind' (45%)" in found.answer
    assert "below the threshold of reg=0.0001" in found.answer
    text = page(run, "prices")
    assert text.index("Who gets worse?") < text.index("Is there conflict?")  # red cards come first
    assert "Set relative_to=&#x27;row&#x27;" in text
    run.method = {"protects": False}
    assert verdict(run)[2].level == "fact"
    assert "Most often kind, in 45% of the steps." in verdict(run)[2].answer


def synthetic(cosine: Callable[[int], float], scale: float, steps: int = 60) -> Run:
    """A run of two gradients with a cosine for each step, one of them so many times as long."""
    metric, run = PairwiseCosine(["a", "b"], sync_on_compute=False), Run("mean")
    for step in range(steps):
        angle = math.acos(cosine(step))
        J = torch.tensor([[1.0, 0.0], [scale * math.cos(angle), scale * math.sin(angle)]])
        run.add(step, conflict_summary(J @ J.T, torch.tensor([0.5, 0.5])).to_dict())
        metric.update(J @ J.T, ("a", "b"))
    run.cosines = Cosines(["a", "b"], metric.compute().tolist())
    return run


@pytest.mark.parametrize(
    ("cosine", "scale", "expected"),
    [
        (lambda _: -0.6, 1.0, "Persistent directional conflict: in 100% of the second half"),
        (lambda _: 0.5, 100.0, "Imbalance of magnitude: norms differ by a factor of 10"),
        (lambda _: 0.5, 1.0, "Neither persistent conflict nor imbalance"),
        (lambda step: -0.6 if step < 20 else 0.5, 1.0, "Neither"),  # it passes
        (lambda step: 0.02 * (-1) ** step, 1.0, "Neither"),  # noise around a right angle
        (lambda _: -0.6, 100.0, "Persistent directional conflict and imbalance of magnitude"),
    ],
)
def test_the_regime_is_named(cosine: Callable[[int], float], scale: float, expected: str) -> None:
    run = synthetic(cosine, scale)
    (found,) = [each for each in verdict(run) if each.question == "Which regime is it?"]
    assert found.level == "fact"
    assert found.answer.startswith(expected)
    run.cosines = None  # as in a run that was only logged, or of one objective per example
    assert "Which regime is it?" not in {each.question for each in verdict(run)}


def test_the_cost_is_that_of_plain_steps() -> None:
    answer = verdict(recorded(**CONFLICT))[4].answer
    assert "A step takes 1.50 times as long as a plain step." in answer


def test_lines_that_coincide_are_dashed_and_values_are_told_without_a_script() -> None:
    same = page(recorded(violation_share=0.2, mean_violation_share=0.2), "same")
    assert same.count("stroke-dasharray") == 1
    assert "<title>step 3\nthis run: 0.2\nthe mean instead: 0.2</title>" in same
    apart = page(recorded(violation_share=0.2, mean_violation_share=0.5), "apart")
    assert "stroke-dasharray" not in apart


def test_two_runs_stand_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jsonargparse")
    from lightning_jd.cli import main

    for name, similarity in (("mean", 1.0), ("upgrad", 0.7)):
        run = recorded(similarity_to_mean=similarity, violation_share=0.1, conflict_rate=0.5)
        run.aggregator = name
        (tmp_path / name).mkdir()
        run.write(tmp_path / name / "jd_run.json")
    assert main(["report", str(tmp_path / "mean"), str(tmp_path / "upgrad")]) == 0
    text = (tmp_path / "mean" / "jd_report.html").read_text()
    assert "<h1>mean and upgrad</h1>" in text
    assert text.count("Jacobian descent with") == 2
    assert text.count("Similarity to the mean update") == 2
    elements = Elements()
    elements.feed(text)
    assert not elements.open
    assert "upgrad:\n  Is there conflict?" in capsys.readouterr().out


def test_what_was_run_is_shown() -> None:
    run = full_run()
    run.about = {"module": NASTY, "seed": "3"}
    text = page(run, "about")
    assert "What was run" in text
    assert "<th>seed</th><td>3</td>" in text
    assert NASTY not in text


class Elements(HTMLParser):
    """Counts elements, and checks that every one is closed."""

    VOID = ("meta", "polygon", "rect", "line", "path")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links += [v for k, v in attrs if k in ("src", "href", "xlink:href") and v]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    text = page(full_run(), f"title {NASTY}")
    elements = Elements()
    elements.feed(text)
    assert not elements.open
    assert not elements.links
    assert "script" not in elements.seen
    assert "url(" not in text
    assert elements.seen.count("svg") == 10
    assert elements.seen.count("polyline") == 15
    assert text.count('class="cell"') == 4
    assert "never together" in text


def test_the_command_writes_and_says_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full_run().write(tmp_path / "jd_run.json")
    report(str(tmp_path))
    assert "strong conflict" in (tmp_path / "jd_report.html").read_text()
    assert "Is there conflict? Yes, strong conflict" in capsys.readouterr().out
    report(str(tmp_path), str(tmp_path / "other.html"), title="My run")
    assert "<h1>My run</h1>" in (tmp_path / "other.html").read_text()


def test_wrong_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="`run_dir` must be an existing folder, got"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(ArgumentError, match=r"no logged value called 'jd/\.\.\.' was found"):
        read_run(tmp_path)
    (tmp_path / "jd_run.json").write_text(json.dumps({"tracks": 3}))
    with pytest.raises(ArgumentError, match="must hold a run that JDReport has written"):
        read_run(tmp_path)


def test_two_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """Loggers call each first run ``version_0``."""
    for method in ("mean", "upgrad"):
        folder = tmp_path / method / "version_0"
        folder.mkdir(parents=True)
        full_run(20).write(folder / "jd_run.json")
    first, second = (str(tmp_path / method / "version_0") for method in ("mean", "upgrad"))
    report(first, other=second)
    text = (tmp_path / "mean" / "version_0" / "jd_report.html").read_text(encoding="utf-8")
    for name in ("mean/version_0", "upgrad/version_0"):
        assert f'<h2 class="name">{name}</h2>' in text


def test_a_run_of_0_2_is_read(tmp_path: Path) -> None:
    content = full_run().to_dict()
    del content["method"], content["about"]
    (tmp_path / "jd_run.json").write_text(json.dumps(content))
    assert read_run(tmp_path) == full_run()


@pytest.mark.parametrize(
    ("noise", "signal", "answer"),
    [(9.0, 1.0, "Yes: "), (1.0, 1.0, "Hardly: "), (1.0, 9.0, "No, "), (1.0, -0.1, "Yes: the grad")],
)
def test_whether_a_larger_batch_would_pay(noise: float, signal: float, answer: str) -> None:
    *_, last = verdict(recorded(gradient_noise=noise, gradient_signal=signal))
    assert last.question == "Would a larger batch pay?"
    assert last.answer.startswith(answer)
    assert all("larger batch" not in found.question for found in verdict(recorded(mean_loss=1.0)))


def test_a_red_card_links_to_a_section_that_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[2]
    protected = recorded(**SAME, **{"worse/kind": 0.45, "norm/kind": 1.0})
    protected.method = {"protects": True, "reg": 1e-4}
    for run in (recorded(**SAME), protected):
        (place,) = [finding.page for finding in verdict(run) if finding.level == "act"]
        name, _, section = place.partition(": ")
        assert f"\n## {section}\n" in (root / name).read_text(encoding="utf-8")
        assert f'<a href="{(root / name).as_uri()}">{name}, “{section}”</a>' in page(run, "run")
        with monkeypatch.context() as patch:
            patch.setattr(Path, "is_file", lambda file: False)  # installed without its docs
            assert f"More: {name}, “{section}”</span>" in page(run, "run")
