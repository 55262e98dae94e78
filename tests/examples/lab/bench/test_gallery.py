"""`bench gallery` on tiny models; nothing here is a measurement."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from examples.lab.bench import gallery as module
from examples.lab.bench.gallery import gallery
from examples.lab.gallery import GALLERY, GalleryCase, Specimen
from examples.lab.gallery._case import always, three_targets
from examples.lab.gallery.steps import descent_step, error_of, plain_step


def regression(m: int) -> Specimen:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    batch = {"x": torch.randn(m, 4), "y": torch.randn(m, 3)}
    return Specimen(model, always(batch), lambda net, b: three_targets(net(b["x"]), b["y"]))


class Broken(torch.autograd.Function):
    """Its backward fails."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, g: Tensor) -> Tensor:
        raise RuntimeError("no gradient today")


def broken(m: int) -> Specimen:
    specimen = regression(m)
    specimen.losses_of = lambda net, b: three_targets(Broken.apply(net(b["x"])), b["y"])
    return specimen


TINY = {
    case.name: case
    for case in [
        GalleryCase("fast", regression, 4, must=1e6, tasks_must=1e6),
        GalleryCase("slow", regression, 4, must=1e-6, mixes="nothing, but it is said"),
        GalleryCase("broken", broken, 4, must=1.0),
        GalleryCase("absent", regression, 4, requires=("no_such_package",)),
    ]
}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replace the models by some that take no time."""
    for name in list(GALLERY):
        monkeypatch.delitem(GALLERY, name)
    for name, case in TINY.items():
        monkeypatch.setitem(GALLERY, name, case)
    monkeypatch.setattr(module, "compiled_ratio", lambda repeats, clock: (1.1, 5.0, 32))
    return


def rows_of(folder: Path) -> dict[str, dict[str, object]]:
    rows = json.loads((folder / "gallery.json").read_text())["rows"]
    return {row["name"]: row for row in rows}


@pytest.mark.usefixtures("tiny")
def test_the_table_says_what_is_fast_slow_broken_and_absent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = torch.get_num_threads()
    gallery(repeats=2, output=tmp_path)
    assert torch.get_num_threads() == before
    rows = rows_of(tmp_path)
    assert {name: row["mark"] for name, row in rows.items()} == {
        "fast": "yes",
        "slow": "missed",
        "broken": "fails",
        "compiled": "yes",
    }
    assert rows["fast"]["error"] < 1e-12
    assert rows["fast"]["tasks_error"] < 1e-12
    assert rows["fast"]["slow"] == "0 of 4"
    page = (tmp_path / "gallery.md").read_text(encoding="utf-8")
    assert "Slower than it must be: slow." in page
    assert "broken fails. RuntimeError: no gradient today" in page
    assert "Instances really mix: slow (nothing, but it is said)." in page
    assert "Not installed: absent." in page
    assert "Models that others wrote" in capsys.readouterr().out


def test_the_error_finds_a_wrong_gradient() -> None:
    specimen = TINY["fast"].specimen().double()
    assert error_of(specimen, "instances") < 1e-12
    specimen.model.zero_grad()

    def spoil(p: Tensor) -> None:
        p.grad.mul_(1.01)

    specimen.model[0].weight.register_post_accumulate_grad_hook(spoil)
    assert error_of(specimen, "instances") > 1e-4


def test_steps_count_their_batches_and_agree_on_the_mean() -> None:
    specimens = [TINY["fast"].specimen() for _ in range(3)]
    seen: list[int] = []
    batch = specimens[0].batch
    specimens[0].batch = lambda step: [seen.append(step), batch(step)][1]
    plain = plain_step(specimens[0])
    plain()
    plain()
    assert seen == [0, 1]
    descent_step(specimens[1], "instances")()
    descent_step(specimens[2], "tasks")()
    for p, q, r in zip(*(s.model.parameters() for s in specimens), strict=True):
        torch.testing.assert_close(q.grad, p.grad)
        torch.testing.assert_close(3 * r.grad, p.grad)  # the mean over tasks, not their sum
