"""One training run: what it is decided by, and when it ends."""

import pytest
import torch

from examples.lab.studies._run import Run
from examples.lab.studies._training import train
from examples.lab.work.paper import paper_cnn
from lightning_jd.aggregators import GradDrop
from lightning_jd.engines import jacobian
from lightning_jd.metrics import similarity_to_mean

Batch = tuple[torch.Tensor, torch.Tensor]
RUN = Run("mnist", "upgrad", 1e-4, 0.05, seed=1, epochs=2, size=16, batch=8)


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
    images, labels = batch
    torch.manual_seed(1)
    model = paper_cnn("mnist")
    optimizer = kind(model.parameters(), lr=lr)
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
    assert outcome.similarities == pytest.approx([1.0] * 4)


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
