"""One training run of the paper's protocol: instance-wise losses, a constant rate, the Trainer."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from examples.lab.device import here
from examples.lab.studies._run import End, Outcome, Run
from examples.lab.studies._settings import Setting
from examples.lab.trainer import bare_trainer, quiet
from examples.lab.work.paper import Architecture, paper_cnn
from lightning_jd.errors import NonFiniteError
from lightning_jd.metrics import conflict_summary
from lightning_jd.surfaces._observe import direction_of
from lightning_jd.surfaces.lightning_pytorch import JacobianDescent

_DIVERGED = 1e3  # a cross-entropy that no training of ten classes comes back from
_PATIENCE = 0.25  # of the run, before it is compared with its rival step by step
_SLACK = 1.1  # how much more area than the rival's a run may have by then
_RECENT = 0.125  # of the run: the last losses, which tell where it is heading


def train(
    run: Run,
    architecture: Architecture,
    images: Tensor,
    labels: Tensor,
    rival: Sequence[float] | None = None,
) -> Outcome:
    """Train a network of the paper from scratch, with the callback ``JacobianDescent``.

    Args:
        run: The settings.
        architecture: Which network.
        images: (size, channels, height, width), normalised.
        labels: (size,).
        rival: The losses of the best finished run that differs in the learning rate only. The run
            is given up when its area is beyond that of the rival, or, after a quarter of the
            steps, a tenth larger than the rival's up to the same step, while its last losses are
            no better than those that the rival still had before it.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        model = paper_cnn(architecture).to(here())
    descent = JacobianDescent(Setting(run.aggregator, run.reg).built(run.seed))
    module = _InstanceWise(run, model, descent, _Watch(rival))
    end: End = "finished"
    with quiet():
        trainer = bare_trainer(run.epochs, [descent])
        try:
            trainer.fit(module, _Batches(images.to(here()), labels.to(here()), run))
        except _StoppedError as stopped:
            end = stopped.end
        except NonFiniteError:
            end = "diverged"
    # Six digits are more than a figure shows, and keep the file of results small.
    columns = [[float(f"{x:.6g}") for x in c] for c in zip(*module.steps, strict=True)]
    losses, similarities, largest, cosines, harmed = columns or [[], [], [], [], []]
    return Outcome(losses, similarities, largest, cosines, harmed, end)


class _StoppedError(Exception):
    """Ends a run before its time."""

    def __init__(self, end: End) -> None:
        super().__init__(end)
        self.end: End = end


class _Watch:
    """Compares the losses of a run with those of its rival."""

    def __init__(self, rival: Sequence[float] | None) -> None:
        self._rival = list(accumulate(rival or ()))
        self._losses: list[float] = []

    def check(self, loss: float) -> None:
        """Raise if the run has failed."""
        if not loss < _DIVERGED:
            raise _StoppedError("diverged")
        self._losses.append(loss)
        if self._rival and self._is_beaten():
            raise _StoppedError("given up")

    def _is_beaten(self) -> bool:
        area, done, planned = sum(self._losses), len(self._losses), len(self._rival)
        if area > self._rival[-1]:
            return True
        if done <= _PATIENCE * planned or area <= _SLACK * self._rival[done - 1]:
            return False
        # Behind, but a rival that grew unstable later on is still to be overtaken.
        recent = self._losses[-max(1, int(_RECENT * planned)) :]
        ahead = (self._rival[-1] - self._rival[done - 1]) / max(1, planned - done)
        return sum(recent) / len(recent) >= ahead


class _Batches:
    """The images in a new order in each epoch."""

    def __init__(self, images: Tensor, labels: Tensor, run: Run) -> None:
        self._images, self._labels, self._size = images, labels, run.batch
        self._order = torch.Generator().manual_seed(run.seed)

    def __len__(self) -> int:
        return -(-len(self._labels) // self._size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self._labels), generator=self._order)
        for chosen in order.to(self._labels.device).split(self._size):
            yield self._images[chosen], self._labels[chosen]


class _InstanceWise(LightningModule):
    """One objective per image, and a note of each step."""

    def __init__(
        self, run: Run, model: torch.nn.Module, descent: JacobianDescent, watch: _Watch
    ) -> None:
        super().__init__()
        self.run, self.model = run, model
        self._descent, self._watch = descent, watch
        self._loss = float("nan")
        #: The entries of an outcome, step by step.
        self.steps: list[tuple[float, ...]] = []

    @override
    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        losses = functional.cross_entropy(self.model(images), labels, reduction="none")
        self._loss = float(losses.detach().mean())
        self._watch.check(self._loss)
        return losses

    @override
    def on_train_batch_end(self, *_: Any) -> None:
        report = self._descent.report
        assert report is not None
        update = direction_of(report)
        found = conflict_summary(report.gramian, report.known_weights, update=update).to_dict()
        self.steps.append(
            (
                self._loss,
                found["similarity_to_mean"],
                found.get("largest_weight", 0.0),
                found["violation_worst_cosine"],
                found["violation_share"],
            )
        )

    @override
    def configure_optimizers(self) -> torch.optim.Optimizer:
        kind = torch.optim.Adam if self.run.optimizer == "adam" else torch.optim.SGD
        return kind(self.parameters(), lr=self.run.lr)
