"""``large_batches``: what makes weights of many objectives cheaper, and what it costs in steps."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from examples.lab.console import progress_bar
from examples.lab.data import Images, load
from examples.lab.folders import writable_folder
from examples.lab.report import Report, Value
from examples.lab.store import Store
from examples.lab.threads import one_thread
from lightning_jd import backward
from lightning_jd.aggregators import Method, SubJacobians, resolve
from lightning_jd.errors import ArgumentError

GROUPS = 64
#: Name to line of the table.
METHODS = {
    "mean": "the mean of the losses",
    "upgrad": "UPGrad",
    "parts of 128": "UPGrad on random parts of 128 rows",
    "parts of 32": "UPGrad on random parts of 32 rows",
    "one part of 128": "UPGrad on 128 rows, without the others (SSJD)",
    "64 groups": "UPGrad, 64 groups of examples as objectives",
}
_WATCHED = 1024  # images on which the loss is measured
_COLUMNS = {
    "batch": "batch",
    "method": "method",
    "rate": "learning rate",
    "ms": "ms per step",
    "steps_area": "loss over the steps",
    "steps_error": "standard error",
    "seconds_area": "loss over the seconds",
    "seconds_error": "standard error",
}


@dataclass(frozen=True)
class Setting:
    """One run."""

    batch: int
    method: str
    rate: float
    seed: int
    steps: int
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """Mean losses over the first steps, and over the first seconds; milliseconds of a step."""

    steps_area: float
    seconds_area: float
    ms: float


def large_batches(
    data: str = "data/fashion-mnist",
    dataset: str = "fashion-mnist",
    batches: Sequence[int] = (512, 1024),
    methods: Sequence[str] = tuple(METHODS),
    rates: Sequence[float] = (0.1, 0.3, 1.0),
    seeds: int = 3,
    steps: int = 20,
    seconds: float = 2.0,
    output: str = "results/large_batches",
) -> None:
    """Train an MLP on large batches with one objective per image, and compare the methods.

    The area under the training loss, on 1,024 images that are not trained on, is taken over the
    first steps and over the first seconds of processor time of one thread, without the time of the
    measurement. The learning rate is the best one of the first seed, for each of both.
    Finished runs are kept in runs.jsonl and not repeated.

    Args:
        data: The folder with the official files of the dataset; nothing is downloaded.
        dataset: "mnist", "fashion-mnist" or "kuzushiji-mnist".
        batches: Numbers of images in a batch.
        methods: Names of methods, of those in the table.
        rates: Learning rates of plain SGD.
        seeds: How many runs, each with other initial weights and batches.
        steps: Over how many steps the area is taken.
        seconds: Over how many seconds the area is taken.
        output: The folder for the results.
    """
    if seeds < 1 or steps < 1 or not seconds > 0 or not rates:
        raise ArgumentError(
            "`seeds`, `steps`, `seconds` and `rates` must be positive, got "
            f"{seeds}, {steps}, {seconds} and {list(rates)}."
        )
    if unknown := set(methods) - METHODS.keys():
        raise ArgumentError(f"`methods` must be among {', '.join(METHODS)}, got {sorted(unknown)}.")
    path = writable_folder(output) / "runs.jsonl"
    split = load(dataset, data)
    mean, deviation = split.moments()
    pixels = (split.images.float() / 255 - mean.float()) / deviation.float()  # one channel
    images = Images(pixels.flatten(start_dim=1), split.labels)
    store: Store[Setting, Outcome] = Store(
        path,
        write=lambda setting, outcome: [asdict(setting), asdict(outcome)],
        read=lambda entry: (Setting(**entry[0]), Outcome(**entry[1])),
    )

    def outcome(setting: Setting) -> Outcome:
        start(f"batch {setting.batch} {setting.method} lr {setting.rate:g} seed {setting.seed}")
        if setting not in store:
            with one_thread():
                store.add(setting, _train(setting, images))
        return store[setting]

    rows = []
    total = len(batches) * len(methods) * (len(rates) + 2 * (seeds - 1))
    with progress_bar(total=total) as start:
        for batch in batches:
            for method in methods:
                first = {
                    rate: outcome(Setting(batch, method, rate, 1, steps, seconds)) for rate in rates
                }
                row: dict[str, Value] = {"batch": batch, "method": METHODS[method]}
                for area in ("steps_area", "seconds_area"):
                    rate = min(first, key=lambda rate: getattr(first[rate], area))
                    others = [
                        outcome(Setting(batch, method, rate, seed, steps, seconds))
                        for seed in range(2, seeds + 1)
                    ]
                    runs = [first[rate], *others]
                    found = [getattr(run, area) for run in runs]
                    error = statistics.stdev(found) / len(found) ** 0.5 if seeds > 1 else 0.0
                    row[area], row[area.replace("area", "error")] = statistics.mean(found), error
                    row["rate"] = f"{row['rate']}, {rate:g}" if "rate" in row else f"{rate:g}"
                    row["ms"] = statistics.median(run.ms for run in runs)
                rows.append(row)
    notes = (
        f"{seeds} seeds, plain SGD; areas over {steps} steps and over {seconds:g} seconds of "
        "processor time of one thread; learning rates for steps and for seconds.",
    )
    title = f"Large batches of {dataset}"
    Report("large_batches", title, _COLUMNS, rows, notes).publish(Path(output))


def _train(setting: Setting, images: Images) -> Outcome:
    torch.manual_seed(setting.seed)
    model = nn.Sequential(nn.Linear(784, 128), nn.ELU(), nn.Linear(128, 10))
    drawn = torch.Generator().manual_seed(setting.seed)
    order = torch.randperm(len(images.labels), generator=drawn)
    watched, order = order[:_WATCHED], order[_WATCHED:]
    method, optimizer = _method(setting), torch.optim.SGD(model.parameters(), lr=setting.rate)
    losses, clock, elapsed = [_loss(model, images, watched)], [0.0], 0.0
    while len(losses) <= setting.steps or elapsed < setting.seconds:
        begin = (len(losses) - 1) * setting.batch % (len(order) - setting.batch)
        rows = order[begin : begin + setting.batch]
        if setting.method == "one part of 128":
            rows = rows[:128]
        before = time.process_time()
        loss = cross_entropy(model(images.images[rows]), images.labels[rows], reduction="none")
        optimizer.zero_grad()
        if method is None:
            loss.mean().backward()
        elif setting.method == "64 groups":
            backward(loss.view(GROUPS, -1).mean(dim=1), model, method)
        else:
            backward(loss, model, method)
        optimizer.step()
        elapsed += time.process_time() - before
        losses.append(_loss(model, images, watched))
        clock.append(elapsed)
    return Outcome(
        steps_area=statistics.mean(losses[1 : setting.steps + 1]),
        seconds_area=_area(clock, losses, setting.seconds),
        ms=1e3 * elapsed / (len(losses) - 1),
    )


def _method(setting: Setting) -> Method | None:
    if setting.method == "mean":
        return None
    if setting.method.startswith("parts of"):
        return SubJacobians("upgrad", rows=int(setting.method.split()[-1]), seed=setting.seed)
    return resolve("upgrad")


@torch.no_grad()
def _loss(model: nn.Module, images: Images, rows: Tensor) -> float:
    loss = cross_entropy(model(images.images[rows]), images.labels[rows])
    return float(loss.nan_to_num(1e3).clamp(max=1e3))


def _area(clock: Sequence[float], losses: Sequence[float], seconds: float) -> float:
    """The mean over the time of the loss, which stays as it is between two steps."""
    total = 0.0
    for begin, end, loss in zip(clock, [*clock[1:], seconds], losses, strict=True):
        total += loss * max(0.0, min(end, seconds) - min(begin, seconds))
    return total / seconds
