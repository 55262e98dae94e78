"""``compare``: the same module and data, trained with one method after the other."""

from __future__ import annotations

import math
import statistics
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any

from typing_extensions import override

from lightning_jd.aggregators import resolve
from lightning_jd.errors import ArgumentError
from lightning_jd.report import Run, Table, Track, comparison_page, mean_and_error, suffering
from lightning_jd.surfaces._namespace import surfaces_for
from lightning_jd.surfaces._runs import Built, Job, Outcome, Plan, package_of, run_all

_BUDGET = ("max_epochs", "max_steps", "max_time", "fast_dev_run")
#: Arguments of the Trainer, unless others are given.
_QUIET = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}
_LAST = 0.1  # share of the steps at the end over which losses are averaged

Methods = Sequence[Any] | Mapping[str, Any]


class Comparison:
    """The runs of :func:`compare`: a table, the curves of the losses, and each run.

    Attributes:
        outcomes: Each run: ``label``, ``seed``, ``error``, ``metrics``, ``seconds`` of a step, and
            ``run``, the curves.
    """

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = list(outcomes)
        starts = {(each.seed, each.start) for each in self.outcomes if each.start}
        if len(starts) > len({seed for seed, _ in starts}):
            warnings.warn(
                "The runs must begin alike, got different initial parameters or first batches for "
                "the same seed. Let `module` and `data` draw from torch's, NumPy's or Python's "
                "generators, which are seeded.",
                RuntimeWarning,
                stacklevel=3,
            )

    def by_label(self) -> dict[str, list[Outcome]]:
        """Label to the runs of its seeds that have finished."""
        found: dict[str, list[Outcome]] = {}
        for each in self.outcomes:
            if not each.error:
                found.setdefault(each.label, []).append(each)
        return found

    def errors(self) -> dict[str, str]:
        """Label to the first error among its seeds."""
        found: dict[str, str] = {}
        for each in self.outcomes:
            if each.error:
                found.setdefault(each.label, f"seed {each.seed}: {each.error}")
        return found

    @property
    def table(self) -> Table:
        """Means over the seeds with standard errors: metrics, losses, who gets worse, time."""
        runs = self.by_label()
        done = [each for label in runs for each in runs[label]]
        metrics = list(dict.fromkeys(name for each in done for name in each.metrics))
        losses = list(dict.fromkeys(name for each in done for name in losses_at_end(each.run)))
        first = _median(next(iter(runs.values()), []))
        columns = ["method", *metrics, *(f"loss {name}".strip() for name in losses)]
        columns += ["gets worse", "time", "x plain"]
        rows = []
        for label, each in runs.items():
            ends = [losses_at_end(outcome.run) for outcome in each]
            row = [label]
            row += [mean_and_error([o.metrics.get(n, math.nan) for o in each]) for n in metrics]
            row += [mean_and_error([end.get(name, math.nan) for end in ends]) for name in losses]
            row += [_worse([outcome.run for outcome in each])]
            row += [mean_and_error([_median(each) / first], 2)]
            row += [mean_and_error([statistics.median(o.run.mean("cost") for o in each)], 2)]
            rows.append(row)
        return Table(columns, rows, self.errors())

    def page(self, title: str = "Comparison of methods") -> str:
        """Table and curves as one self-contained HTML page."""
        runs = {label: [each.run for each in runs] for label, runs in self.by_label().items()}
        return comparison_page(title, self.table, runs)

    def write(self, path: str | Path) -> None:
        """Write :meth:`page` to a file."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(self.page(), encoding="utf-8")

    @override
    def __repr__(self) -> str:
        """The table."""
        return self.table.text()

    def _repr_html_(self) -> str:
        """The page, for a notebook."""
        return f'<iframe srcdoc="{escape(self.page())}" width="100%" height="700"></iframe>'


def _median(outcomes: Sequence[Outcome]) -> float:
    """The median over the seeds of the median duration of a step."""
    return statistics.median([each.seconds for each in outcomes] or [math.nan])


def losses_at_end(run: Run) -> dict[str, float]:
    """Objective to its mean training loss over the last tenth of the steps.

    Example:
        >>> run = Run()
        >>> for step in range(20):
        ...     run.add(step, {"loss/a": float(step)})
        >>> losses_at_end(run)
        {'a': 18.5}
    """
    found = {}
    for name, track in (run.members("loss/") or {"": run.tracks.get("mean_loss", Track())}).items():
        points = [value for _, value, _ in track.points()]
        if points:
            found[name] = statistics.fmean(points[-max(1, math.floor(_LAST * len(points))) :])
    return found


def _worse(runs: Sequence[Run]) -> str:
    """The task that steps make worse most often; for instances, the share that a step does."""
    tasks = dict.fromkeys(name for run in runs for name in suffering(run))
    shares = {name: statistics.fmean(suffering(r).get(name, 0.0) for r in runs) for name in tasks}
    if not shares:
        share = statistics.fmean([run.mean("violation_share") for run in runs] or [math.nan])
        return "-" if math.isnan(share) else f"{share:.0%}"
    name = max(shares, key=lambda task: shares[task])
    return f"{shares[name]:.0%} ({name})" if shares[name] else "0%"


def compare(
    methods: Methods,
    module: Any,
    data: Any = None,
    validation: Any = None,
    *,
    max_epochs: int = 10,
    trainer: Mapping[str, Any] | Callable[..., Any] | None = None,
    seeds: int | Sequence[int] = 1,
    folder: str | Path | None = None,
    workers: int = 1,
    **options: Any,
) -> Comparison:
    """Train a module with several methods: same seed, initial parameters, data order and budget.

    The result is a table (``print`` it, or show it in a notebook) of the validation metrics, the
    losses at the end, the task that most steps make worse, the time of a step relative to the first
    method, and relative to a plain step. A run that fails or diverges is a row with its error.

    Args:
        methods: What ``JacobianDescent`` takes: names, dicts, aggregators; or a dict of these by
            label.
        module: A LightningModule, which is copied for each run, or a function that builds it. An
            instance keeps its initial parameters for all seeds; a function is called after seeding.
        data: The loader of the training data, a LightningDataModule, or a function that builds one
            of them; ``None`` for those of the module or of PINA's Trainer.
        validation: The loader of the validation data, or a function that builds it.
        max_epochs: The budget, unless ``trainer`` has another.
        trainer: Arguments of the Trainer; without them, there is no logger, checkpoint or bar. Or a
            function of the module and such arguments that builds a Trainer, as ``pina.Trainer``.
        seeds: The number of seeds, or the seeds.
        folder: Holds a report of each run. What is finished there is not run again, so that a
            comparison that was interrupted goes on.
        workers: How many runs at a time: more than one are processes of one thread each, which
            disturb one another's times. On systems without fork (and with CUDA), they need modules
            that can be imported, and a script needs ``if __name__ == "__main__"``.
        **options: Of ``JacobianDescent``, such as ``params="shared"`` or ``split="terms"``.

    Returns:
        The comparison. ``outcomes`` has each run, ``write("compare.html")`` writes a page.

    Raises:
        ArgumentError: If an argument is invalid, or ``folder`` holds runs with other settings.
        UnknownNameError: If a method is unknown.

    Example:
        >>> import torch, lightning.pytorch as L
        >>> from torch.utils.data import DataLoader
        >>> class Lit(L.LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.net = torch.nn.Linear(2, 2)
        ...     def training_step(self, x, batch_idx):
        ...         a, b = (self.net(x) - x).square().mean(dim=0)
        ...         return {"loss": {"a": a, "b": b}}
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD(self.parameters(), lr=0.1)
        >>> found = compare(["sum", "upgrad"], Lit, DataLoader(torch.ones(8, 2)), max_epochs=1)
        >>> [(each.label, each.error) for each in found.outcomes]
        [('sum', ''), ('upgrad', '')]
    """
    jobs = [
        Job(label, method, seed)
        for label, method in labelled(methods).items()
        for seed in seeds_of(seeds)
    ]
    plan = plan_of(module, data, validation, max_epochs, trainer, options)
    with folder_of(folder) as path:
        return Comparison(run_all(plan, jobs, path, workers))


def plan_of(
    module: Any,
    data: Any,
    validation: Any,
    max_epochs: int,
    trainer: Mapping[str, Any] | Callable[..., Any] | None,
    options: Mapping[str, Any],
) -> Plan:
    """How the runs are made from the arguments of :func:`compare`."""
    arguments = {**_QUIET, **(trainer if isinstance(trainer, Mapping) else {})}
    if not any(name in arguments for name in _BUDGET):
        arguments["max_epochs"] = max_epochs

    def build(seed: int) -> Built:
        built = module() if _is_builder(module) else _copied("module", module, {})
        package = import_module(package_of(surfaces_for(built)))
        own = {name: deepcopy(value) for name, value in arguments.items()}
        made = trainer(built, **own) if callable(trainer) else package.Trainer(**own)
        train, rest = _fresh("data", data), _fresh("validation", validation)
        if train is None:  # the data of PINA's Trainer, or those of the module itself
            return Built(made, built, {"datamodule": getattr(made, "data_module", None)})
        if isinstance(train, package.LightningDataModule):
            return Built(made, built, {"datamodule": train})
        return Built(made, built, {"train_dataloaders": train, "val_dataloaders": rest})

    name = getattr(module, "__name__", type(module).__name__)
    return Plan(build, options, f"{name}, {arguments}, {dict(options)}")


def _is_builder(thing: Any) -> bool:
    """Whether it is called to get the thing itself: a class or a function, and no module."""
    return (callable(thing) and not hasattr(thing, "state_dict")) or isinstance(thing, type)


def _fresh(name: str, data: Any) -> Any:
    """A copy with a random generator of its own, but the same data set."""
    if data is None or _is_builder(data):
        return None if data is None else data()
    dataset = getattr(data, "dataset", None)
    return _copied(name, data, {} if dataset is None else {id(dataset): dataset})


def _copied(name: str, thing: Any, kept: dict[int, Any]) -> Any:
    try:
        return deepcopy(thing, kept)
    except Exception as error:
        raise ArgumentError(
            f"`{name}` must be copied for each run, but {type(thing).__name__} cannot be "
            f"({type(error).__name__}: {error}). Pass a function that builds it."
        ) from error


def labelled(methods: Methods) -> dict[str, Any]:
    """Each method under a label of its own.

    Raises:
        ArgumentError: If there is no method, or two have the same label.
        UnknownNameError: If a method is unknown.
    """
    if isinstance(methods, (str, bytes)):
        methods = [methods]
    pairs = (
        list(methods.items())
        if isinstance(methods, Mapping)
        else [(_label(method), method) for method in methods]
    )
    for _, method in pairs:
        resolve(deepcopy(method))
    found = dict(pairs)
    if not found or len(found) < len(pairs):
        raise ArgumentError(
            "`methods` must be one or more different methods, got "
            f"{[label for label, _ in pairs]}. A dict gives each a label of its own."
        )
    return found


def _label(method: Any) -> str:
    """A name, with the arguments that were given, or the repr of an object.

    Example:
        >>> _label({"name": "cagrad", "c": 0.4})
        'cagrad(c=0.4)'
    """
    if isinstance(method, Mapping) and "name" in method:
        given = ", ".join(f"{key}={value!r}" for key, value in method.items() if key != "name")
        return f"{method['name']}({given})"
    return method if isinstance(method, str) else repr(resolve(deepcopy(method)))


def seeds_of(seeds: int | Sequence[int]) -> list[int]:
    """The seeds, from themselves or from their number."""
    found = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not found or len(set(found)) < len(found):
        raise ArgumentError(f"`seeds` must be their number or different numbers, got {seeds!r}.")
    return found


@contextmanager
def folder_of(folder: str | Path | None) -> Iterator[Path]:
    """The folder, or one for the time being."""
    if folder is not None:
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)
