"""What the studies are made of: runs against plain training, and numbers against values by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from examples.lab.data import load, paper_subset
from examples.lab.studies._comparison import compared
from examples.lab.studies._curves import curves_of
from examples.lab.studies._imbalance import Scale, guess
from examples.lab.studies._momentum import MomentumRun, small_cnn
from examples.lab.studies._momentum import train as train_with_momentum
from examples.lab.studies._run import Outcome, Run
from examples.lab.studies._settings import Setting
from examples.lab.studies._training import train
from examples.lab.studies.flipped import area
from examples.lab.work.pairs import digit_pairs
from examples.lab.work.paper import paper_cnn
from lightning_jd.aggregators import GradDrop
from lightning_jd.engines import jacobian
from lightning_jd.metrics import similarity_to_mean

Batch = tuple[torch.Tensor, torch.Tensor]
RUN = Run("mnist", "upgrad", 1e-4, 0.05, seed=1, epochs=2, size=16, batch=8)


def trained_by_hand(model: Any, optimizer: Any, images: Any, labels: Any, chosen: Any) -> list[Any]:
    """The losses of plain training with the mean loss of some batches."""
    losses = []
    for batch in chosen:
        loss = torch.nn.functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_run_is_decided_by_its_settings(batch: Batch) -> None:
    first = train(RUN, "mnist", *batch)
    torch.manual_seed(99)  # the global state must not matter
    assert train(RUN, "mnist", *batch) == first
    assert len(first.losses) == 4
    assert first.finished
    assert first.losses[-1] < first.losses[0]


@pytest.mark.parametrize(
    ("name", "kind", "lr"), [("sgd", torch.optim.SGD, 0.05), ("adam", torch.optim.Adam, 1e-3)]
)
def test_mean_is_plain_training_on_the_mean_loss(
    batch: Batch, name: str, kind: type[torch.optim.Optimizer], lr: float
) -> None:
    run = Run("mnist", "mean", None, lr, seed=1, epochs=2, size=16, batch=8, optimizer=name)
    torch.manual_seed(1)
    model = paper_cnn("mnist")
    order = torch.Generator().manual_seed(1)
    chosen = [c for _ in range(2) for c in torch.randperm(16, generator=order).split(8)]
    losses = trained_by_hand(model, kind(model.parameters(), lr=lr), *batch, chosen)
    outcome = train(run, "mnist", *batch)
    assert outcome.losses == pytest.approx(losses, rel=1e-4)
    assert outcome.largest_weights == pytest.approx([1.0] * 4)
    assert outcome.similarities == pytest.approx([1.0] * 4)


def test_a_run_with_the_sum_is_a_run_of_torch(folder: Path) -> None:
    split = load("mnist", folder)
    run = MomentumRun("mnist", "SGD, momentum 0.9", "sum", 0.05, seed=1, epochs=2, size=32, batch=8)
    found = train_with_momentum(run, split)
    assert 0 <= found.conflict <= 1
    assert 0 <= found.accuracy <= 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = small_cnn(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    order = torch.Generator().manual_seed(1)
    chosen = [c for _ in range(2) for c in torch.randperm(32, generator=order).split(8)]
    losses = trained_by_hand(model, optimizer, *paper_subset(split, 1, 40), chosen)
    assert found.losses == pytest.approx(losses, rel=1e-3)


def test_similarity_and_harm_are_those_of_the_rows(batch: Batch) -> None:
    images, labels = batch
    run = Run("mnist", "graddrop", None, 1e-3, seed=5, epochs=1, size=16, batch=16)
    outcome = train(run, "mnist", images, labels)
    torch.manual_seed(5)
    model = paper_cnn("mnist")
    chosen = torch.randperm(16, generator=torch.Generator().manual_seed(5))
    losses = torch.nn.functional.cross_entropy(
        model(images[chosen]), labels[chosen], reduction="none"
    )
    J = jacobian(losses, model)
    update = GradDrop(seed=5)(J)
    expected = float(similarity_to_mean(jacobian=J, update=update))
    assert outcome.similarities == pytest.approx([expected], rel=1e-3)
    assert outcome.harmed == pytest.approx([float((J @ update < 0).float().mean())])
    assert outcome.largest_weights == [0.0]


def outcome(*losses: float, end: Any = "finished") -> Outcome:
    return Outcome(list(losses), *[[0.5] * len(losses)] * 4, end)


def test_rows_and_curves_are_means_over_seeds() -> None:
    run = Run("mnist", "mean", None, 0.1, seed=1, epochs=1, size=16, batch=8)
    best = {
        Setting("mean"): [(run, outcome(4.0, 2.0)), (run, outcome(6.0, 4.0))],
        Setting("upgrad", 1e-4): [(run, outcome(2.0, 2.0)), (run, outcome(2.0, 2.0))],
        Setting("mgda"): [(run, outcome(2.0, 2.0)), (run, outcome(end="diverged"))],
    }
    rows = {row["method"]: row for row in compared(best)}
    assert list(rows) == ["UPGrad, reg 1e-4", "Mean (SGD)", "MGDA"]
    assert rows["Mean (SGD)"]["area"] == 4.0
    assert rows["Mean (SGD)"]["error"] == pytest.approx(1.0)
    assert rows["UPGrad, reg 1e-4"]["ratio"] == 0.5
    assert (rows["MGDA"]["area"], rows["MGDA"]["not_finished"]) == (None, 1)
    run = Run("mnist", "mean", None, 0.1, seed=1, epochs=1, size=64, batch=8)
    first, second = outcome(*[1.0] * 4, *[2.0] * 4), outcome(*[3.0] * 4, *[4.0] * 4)
    loss, similarity = curves_of([(run, first), (run, second), (run, outcome(end="diverged"))])
    assert loss.points[0] == pytest.approx((0.125, 2.0, 1.0))
    assert [mean for _, mean, _ in loss.points] == [2.0, 2.0, 3.0, 3.0]
    assert [error for _, _, error in similarity.points] == [0.0] * 4


def test_scores_are_zero_for_a_guess_and_100_for_a_network_of_its_own() -> None:
    part = digit_pairs(100, slice(0, 50), seed=0)
    scale = Scale({"left": 90.0, "right": 80.0, "sum": 1.0}, guess(part))
    assert scale.scores(scale.single) == pytest.approx(dict.fromkeys(scale.single, 100.0))
    assert scale.scores(scale.guess) == pytest.approx(dict.fromkeys(scale.guess, 0.0))
    assert scale.worst({"left": 50.0, "right": 80.0, "sum": 1.0}) == pytest.approx(50.0)
    assert scale.worst({}) == 0.0
    # No constant has a smaller error than the guess.
    errors = [(part.sum - c).abs().mean() for c in torch.arange(0, 18.5, 0.5)]
    assert scale.guess["sum"] <= min(errors) + 1e-6


def test_the_area_is_the_share_of_pairs_in_the_right_order() -> None:
    draw = np.random.default_rng(0)
    scores, wrong = draw.integers(0, 6, 50).astype(float), draw.random(50) < 0.3
    pairs = [(a > b) + (a == b) / 2 for a in scores[wrong] for b in scores[~wrong]]
    assert area(scores, wrong) == pytest.approx(np.mean(pairs))
