"""Train one network for several tasks, or for one, and judge it."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.nn import functional
from torchmetrics.functional.classification import binary_auroc
from typing_extensions import override

from examples.lab.clock import CLOCKS, best_clock
from examples.lab.data.multitask import Multitask, Part, Task
from examples.lab.device import here, wait_for_device
from examples.lab.studies._settings import seeded
from examples.lab.studies.multitask._trial import FAILED, SINGLE, Result, Trial, mean_of
from examples.lab.trainer import bare_trainer, quiet
from examples.lab.work.multitask import Columns, Multihead, multitask_network
from lightning_jd.errors import NonFiniteError
from lightning_jd.metrics import conflict_summary
from lightning_jd.surfaces.lightning_pytorch import JacobianDescent

_EVALUATED = 1000  # instances of a batch without gradients
_LOOKED_AT = 10  # every so many steps the conflict is measured


def train(trial: Trial, data: Multitask) -> Result:
    """Train from scratch with AdamW, keep the best epoch of the validation, and judge it once.

    Args:
        trial: The settings.
        data: The dataset, of the size of the trial.
    """
    data = data.to(here())
    tasks = [task for task in data.tasks if trial.task in ("", task.name)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(trial.seed)
        outputs = {task.name: task.outputs for task in tasks}
        network = multitask_network(trial.network, outputs, _columns(trial, data))
    descent = None if trial.method == SINGLE else _descent(trial)
    module = _Module(trial, network, tasks, data.validation, descent)
    with quiet():
        trainer = bare_trainer(trial.epochs, [] if descent is None else [descent])
        with suppress(NonFiniteError):  # what was best until then counts
            trainer.fit(module, _Batches(data.train, trial))
    if module.best is None:
        return FAILED
    network.load_state_dict(module.best)
    found = evaluated(network.to(here()), data.test, tasks)  # the Trainer leaves it on the host
    return Result(
        score=module.score,
        validation=module.metrics,
        test={name: metric for name, (metric, _) in found.items()},
        best_epoch=module.best_epoch,
        epochs=module.epoch,
        seconds_per_step=statistics.median(module.seconds),
        conflict=mean_of(module.conflicts),
        harmed=mean_of(module.harmed),
    )


def _descent(trial: Trial) -> JacobianDescent:
    return JacobianDescent(seeded(trial.method, trial.seed), params="shared")


def _columns(trial: Trial, data: Multitask) -> Columns | None:
    if trial.network not in ("mlp", "mmoe"):
        return None
    numbers, categories = data.train.inputs
    # Counted over all parts: a network for a subset must know every index.
    parts = (data.train, data.validation, data.test)
    most = max(int(part.inputs[1].max()) for part in parts)
    return Columns(numbers.shape[1], categories.shape[1], most + 1)


def loss_of(task: Task, output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of classes and of yes or no, mean square of a number."""
    if task.kind == "classes":
        return functional.cross_entropy(output, target)
    if task.kind == "binary":
        return functional.binary_cross_entropy_with_logits(output[:, 0], target)
    return functional.mse_loss(output[:, 0], target)


def evaluated(network: Multihead, part: Part, tasks: list[Task]) -> dict[str, tuple[float, float]]:
    """Task to its metric and its score, on all instances of a part."""
    network.eval()
    with torch.no_grad():
        pieces = [network(*batch) for batch in _pieces(part)]
    network.train()
    together = {task.name: torch.cat([piece[task.name] for piece in pieces]) for task in tasks}
    return {task.name: judged(task, together[task.name], part.targets[task.name]) for task in tasks}


def judged(task: Task, output: Tensor, target: Tensor) -> tuple[float, float]:
    """The metric of a task, and its score, of which more is better; NaN of what is not finite."""
    if not bool(output.isfinite().all()):
        return float("nan"), float("nan")  # of which classes and orders could still be taken
    if task.kind == "classes":
        accuracy = float((output.argmax(dim=1) == target).float().mean())
        return 100 * accuracy, accuracy
    if task.kind == "binary":
        area = float(binary_auroc(output[:, 0], target.int()))
        return 100 * area, area
    error = float((output[:, 0] - target).abs().mean())
    return task.scale * error, -error


def _pieces(part: Part) -> Iterator[tuple[Tensor, ...]]:
    for begin in range(0, len(part), _EVALUATED):
        yield tuple(tensor[begin : begin + _EVALUATED] for tensor in part.inputs)


class _Batches:
    """The instances in a new order in each epoch; a last batch that is short is left out."""

    def __init__(self, part: Part, trial: Trial) -> None:
        self._part, self._size = part, min(trial.batch, len(part))
        self._order = torch.Generator().manual_seed(trial.seed)

    def __len__(self) -> int:
        return len(self._part) // self._size

    def __iter__(self) -> Iterator[tuple[tuple[Tensor, ...], Mapping[str, Tensor]]]:
        order = torch.randperm(len(self._part), generator=self._order)
        for chosen in order.to(here()).split(self._size)[: len(self)]:
            batch = self._part.chosen(chosen)
            yield batch.inputs, dict(batch.targets)


class _Module(LightningModule):
    """One loss per task, early stopping, and a note of what steps cost and who conflicts."""

    def __init__(
        self,
        trial: Trial,
        network: Multihead,
        tasks: list[Task],
        validation: Part,
        descent: JacobianDescent | None,
    ) -> None:
        super().__init__()
        self.trial, self.network, self.tasks = trial, network, tasks
        self._validation, self._descent = validation, descent
        self.score, self.epoch, self.best_epoch = float("-inf"), 0, 0
        self.best: dict[str, Tensor] | None = None
        self.metrics: dict[str, float] = {}
        self.seconds: list[float] = []
        self.conflicts: list[float | None] = []
        self.harmed: list[float | None] = []
        self._now, self._begin = CLOCKS[best_clock()], 0.0

    @override
    def training_step(self, batch: tuple[tuple[Tensor, ...], Mapping[str, Tensor]]) -> Any:
        inputs, targets = batch
        outputs = self.network(*inputs)
        losses = {t.name: loss_of(t, outputs[t.name], targets[t.name]) for t in self.tasks}
        return next(iter(losses.values())) if self._descent is None else {"loss": losses}

    @override
    def on_train_batch_start(self, *_: Any) -> None:
        wait_for_device()
        self._begin = self._now()

    @override
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        wait_for_device()
        self.seconds.append(self._now() - self._begin)
        report = None if self._descent is None else self._descent.report
        if report is None or report.known_gramian is None or batch_idx % _LOOKED_AT:
            return
        if report.known_weights is None:  # a method without weights
            return
        found = conflict_summary(report.gramian, report.weights).to_dict()
        self.conflicts.append(found["conflict_rate"])
        self.harmed.append(found["violation_share"])

    @override
    def on_train_epoch_end(self) -> None:
        self.epoch += 1
        found = evaluated(self.network, self._validation, self.tasks)
        score = statistics.mean(score for _, score in found.values())
        if score > self.score:  # also false for NaN
            self.score, self.best_epoch = score, self.epoch
            self.metrics = {name: metric for name, (metric, _) in found.items()}
            self.best = copy.deepcopy(self.network.state_dict())
        if self.epoch - self.best_epoch >= self.trial.patience:
            self.trainer.should_stop = True

    @override
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            self.parameters(), lr=self.trial.lr, weight_decay=self.trial.weight_decay
        )
