"""``lightning-jd compare`` and ``front``: the runs of a program that uses LightningCLI."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

from lightning_jd.errors import ArgumentError
from lightning_jd.surfaces._namespace import surfaces_in_use
from lightning_jd.surfaces._runs import Built, Job, Plan, package_of, run_all
from lightning_jd.surfaces.comparison import Comparison, folder_of, labelled, seeds_of
from lightning_jd.surfaces.fronts import front_of

#: Before the arguments of the user, which win.
_QUIET = (
    *("--trainer.logger=false", "--trainer.enable_checkpointing=false"),
    *("--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"),
)


def compare(
    methods: str,
    script: str,
    arguments: list[str],
    seeds: int = 1,
    workers: int = 1,
    folder: str | None = None,
    output: str = "compare.html",
) -> None:
    """Train a program that uses LightningCLI with several methods, and compare them.

    Each run has the same seed, initial parameters, data order and budget. If the configuration has
    JacobianDescent, its options are kept and its aggregator is replaced. Prints a table, and writes
    it with the curves to a page. For instance:
    lightning-jd compare --seeds 3 sum,upgrad,config train.py --config config.yaml --model.lr 0.05

    Args:
        methods: Names of aggregators, separated by commas.
        script: The program, a Python file.
        arguments: What follows "fit" on the command line of the program.
        seeds: The number of seeds (--seed_everything is 0, 1, ...).
        workers: How many runs at a time, in processes of one thread each.
        folder: Keeps the runs: what is finished there is not run again.
        output: The page to write.
    """
    plan = plan_of_script(script, arguments)
    specs = labelled([name.strip() for name in methods.split(",")])
    jobs = [Job(label, spec, seed) for label, spec in specs.items() for seed in seeds_of(seeds)]
    with folder_of(folder) as path:
        found = Comparison(run_all(plan, jobs, path, workers))
    print(found)
    found.write(output)
    print(f"written: {output}")


def front(
    methods: str,
    script: str,
    arguments: list[str],
    preferences: int = 5,
    objectives: str = "",
    higher_is_better: bool = False,
    seeds: int = 1,
    workers: int | None = None,
    folder: str | None = None,
    output: str = "front.html",
) -> None:
    """Train a program that uses LightningCLI with several preferences, and draw the front.

    Every task is trained alone, too. Prints the hypervolume of each method and writes a page with
    all points. For instance:
    lightning-jd front --preferences 5 --folder runs sum,upgrad,stch train.py --config config.yaml

    Args:
        methods: Methods with a preference, or "sum" for a sweep of weights, separated by commas.
        script: The program, a Python file.
        arguments: What follows "fit" on the command line of the program.
        preferences: Their number, spread over the simplex.
        objectives: Validation metrics, separated by commas; the losses at the end by default.
        higher_is_better: The objectives are to be high, as accuracies are.
        seeds: The number of seeds (--seed_everything is 0, 1, ...).
        workers: How many runs at a time, in processes of one thread each; one per core by default.
        folder: Keeps the runs: what is finished there is not run again.
        output: The page to write.
    """
    names = [name.strip() for name in methods.split(",")]
    axes = [name.strip() for name in objectives.split(",") if name.strip()]
    found = front_of(
        plan_of_script(script, arguments), names, preferences, seeds, folder, workers,
        objectives=axes, higher_is_better=higher_is_better,
    )  # fmt: skip
    print(found)
    found.write(output)
    print(f"written: {output}")


def plan_of_script(script: str, arguments: Sequence[str]) -> Plan:
    """How the runs of a program are made; the program itself is stopped at its LightningCLI."""
    words = list(arguments[1:] if arguments[:1] == ["fit"] else arguments)
    make = _command_line_of(Path(script), words)

    def build(seed: int) -> Built:
        cli = make([*_QUIET, *words, f"--seed_everything={seed}"])
        return Built(cli.trainer, cli.model, {"datamodule": cli.datamodule})

    return Plan(build, {}, f"{script} {' '.join(words)}")


class _Reached(BaseException):
    """The program has come to its LightningCLI; nothing of it must catch this."""


def _command_line_of(script: Path, words: list[str]) -> Callable[[list[str]], Any]:
    """What builds Trainer, module and data of the program from its command line."""
    cls = import_module(f"{package_of(surfaces_in_use())}.cli").LightningCLI
    original, seen = cls.__init__, []

    def stop(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        seen.append((type(self), args, kwargs))
        raise _Reached

    if not script.is_file():
        raise ArgumentError(f"`script` must be a Python file, got {str(script)!r}.")
    here, argv = str(script.resolve().parent), [str(script), "fit", *words]
    with patch.object(cls, "__init__", stop), patch.object(sys, "argv", argv):
        sys.path.insert(0, here)  # it stays: the program may import more when it is built
        with suppress(_Reached):
            runpy.run_path(str(script), run_name="__main__")
    if not seen:
        raise ArgumentError(
            f"`script` must call LightningCLI when it is run, got {str(script)!r}, which does not. "
            "Call lightning_jd.compare(methods, module, data) in Python instead."
        )
    kind, args, kwargs = seen[0]

    def make(line: list[str]) -> Any:
        cli: Any = object.__new__(kind)
        own = {**kwargs, "args": line, "run": False, "save_config_callback": None}
        original(cli, *args, **own)
        return cli

    return make
