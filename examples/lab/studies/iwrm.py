"""``iwrm``: instance-wise risk minimisation, the main experiment of the paper."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from examples.lab.console import progress_bar
from examples.lab.crew import side_by_side
from examples.lab.device import measured_on, name_of_device
from examples.lab.figure import check_matplotlib
from examples.lab.folders import writable_folder
from examples.lab.studies._comparison import publish
from examples.lab.studies._rates import Budget, best_runs
from examples.lab.studies._run import Optimizer, Run
from examples.lab.studies._settings import (
    PAPER_AGGREGATORS,
    check_epochs,
    names_of,
    settings_of,
)
from examples.lab.studies._workers import crew
from examples.lab.work.paper import ADAM_EPOCHS, EPOCHS
from lightning_jd.errors import ArgumentError


def iwrm(
    dataset: str = "mnist",
    data: str = "data/mnist",
    aggregators: Sequence[str] | str = PAPER_AGGREGATORS,
    regs: Sequence[float] = (1e-4, 1e-3),
    budget: Budget = "small",
    seeds: int = 3,
    batch_size: int = 32,
    optimizer: Optimizer = "sgd",
    epochs: int | None = None,
    size: int = 1024,
    workers: int = 2,
    device: str = "cpu",
    output: str | None = None,
) -> None:
    """Compare the paper's aggregators on images, with one objective per training image.

    A network of the paper is trained through Lightning's Trainer with the callback
    JacobianDescent, on 1,024 images per seed, in batches of 32, with cross-entropy and a constant
    learning rate: for each aggregator the one with the least area under the training loss.
    Mean is ordinary SGD. Finished runs are kept in runs.jsonl and not repeated: stop with Ctrl-C
    and start again at will. At the end there are a table (iwrm.json, iwrm.md), the curves
    (curves.csv) and a figure (iwrm.png): training loss and similarity to the update of SGD, with
    the standard error over seeds.

    The small budget takes about half an hour on two cores: a walk over learning rates by factors
    of 10^(1/3) with the first seed, refined by 10^(1/6) at its end, in which rates that fall behind
    are given up early; the best is kept for the other seeds, or lowered where one does far worse
    with it, or raised where the first seed has diverged just above. The budget of the paper sweeps
    22 + 50 rates for every aggregator and seed, which takes days.

    Args:
        dataset: "svhn", "cifar10", "eurosat", "mnist", "fashion-mnist" or "kuzushiji-mnist".
        data: The folder with the official files of the dataset; nothing is downloaded.
        aggregators: Which to compare, e.g. --aggregators mean, or --aggregators '[mean, upgrad]';
            by default all eleven.
        regs: Regularisations of UPGrad; DualProj has the first of them, the paper's 1e-4.
        budget: "small" or "paper": how many learning rates are tried.
        seeds: How many reruns, each with other images, initial weights and batches.
        batch_size: Images, hence objectives, in a step; the paper also tries 4, 16 and 64.
        optimizer: "sgd" (without momentum) or "adam".
        epochs: Passes over the images; by default as many as in the paper.
        size: The number of training images.
        workers: Runs that are trained at a time, in processes of one thread each; 1 trains in this
            process.
        device: Where models and data are: "cpu", "cuda", ...; runs of different devices are kept
            apart.
        output: The folder for the results; by default results/iwrm-<dataset>.
    """
    aggregators = names_of(aggregators)
    if seeds < 1 or not aggregators or not regs:
        raise ArgumentError(
            "`seeds`, `aggregators` and `regs` must not be zero or empty, got "
            f"{seeds}, {list(aggregators)} and {list(regs)}."
        )
    if batch_size < 2 or size < batch_size:
        raise ArgumentError(
            "`batch_size` must be at least 2 (a single loss is plain SGD) and at most `size`, got "
            f"{batch_size} and {size}."
        )
    check_epochs(epochs)
    check_matplotlib()  # before the work, not after it
    settings = settings_of(aggregators, regs)
    if epochs is None:
        epochs = (ADAM_EPOCHS if optimizer == "adam" else EPOCHS).get(dataset, 1)
    folder = writable_folder(output or f"results/iwrm-{dataset}")
    tries = seeds * 72 if budget == "paper" else seeds + 5
    with measured_on(device):
        on = name_of_device()
        first = Run(dataset, "mean", None, 1.0, 1, epochs, size, batch_size, optimizer, on)
        firsts = [replace(first, aggregator=s.aggregator, reg=s.reg) for s in settings]
        with (
            progress_bar(total=len(settings) * tries, counts="finished") as announce,
            crew(dataset, data, size, folder / "runs.jsonl", workers, announce) as trained,
        ):
            jobs = [partial(best_runs, first, seeds, budget, trained) for first in firsts]
            best = side_by_side(jobs, workers)
        publish(dict(zip(settings, best, strict=True)), trained, budget, folder)
