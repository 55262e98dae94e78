"""``bench gallery``: exactness and cost on models that others wrote."""

from __future__ import annotations

import warnings
from pathlib import Path

from examples.lab.bench._compiled import compiled_ratio
from examples.lab.clock import Clock, check_clock, interleaved, ratio
from examples.lab.console import progress_bar
from examples.lab.device import here, measured_on
from examples.lab.environment import environment
from examples.lab.gallery import GALLERY, GalleryCase
from examples.lab.gallery.steps import (
    Kind,
    descent_step,
    error_of,
    plain_step,
)
from examples.lab.report import Report, Value
from examples.lab.threads import threads_of_torch
from lightning_jd.engines import Objectives, Tape, named_parameters_of
from lightning_jd.errors import ArgumentError, UnknownNameError

COMPILED = "compiled"
_COMPILED_MUST = 1.2
_CHECKED = 8  # instances of the check in float64: one backward pass each
_COLUMNS = {
    "model": "model",
    "m": "instances",
    "ratio": "instances / plain",
    "must": "must",
    "mark": "reached",
    "tasks_ratio": "tasks / plain",
    "tasks_must": "must",
    "error": "error",
    "tasks_error": "error, tasks",
    "slow": "slow parameters",
    "plain_ms": "plain ms",
    "culprit": "because of",
}
_BRIEF = ("model", "m", "ratio", "must", "mark", "error", "slow", "plain_ms", "culprit")


def gallery(
    only: list[str] | None = None,
    threads: int = 1,
    clock: Clock = "wall",
    repeats: int = 11,
    device: str = "cpu",
    output: Path = Path("results"),
) -> None:
    """Check and time Jacobian descent on third-party models with random weights.

    Every model is checked in float64 against one ordinary backward pass per loss, and timed in
    float32: a whole step with the aggregator mean (forward, Gramian, weights, gradients) against
    the plain step `losses.mean().backward()` of the same model, in turns, for one objective per
    instance and for one per task. Nothing is downloaded.

    Args:
        only: Models by name, e.g. --only '[llama-gqa, gcn]'; all that can be imported by default.
        threads: Threads of torch.
        clock: "wall", or "cpu" for the processor time of all threads, which other programs disturb
            less.
        repeats: Timed rounds for each model.
        device: Where models and data are: "cpu", "cuda", ...
        output: The folder for gallery.json and gallery.md; lines that are not measured now are kept
            if they are there already.
    """
    chosen = _chosen(only)
    if repeats < 1:
        raise ArgumentError(f"`repeats` must be at least 1, got {repeats}.")
    rows = _earlier(output) if only else {}
    missing = [name for name in chosen if name in GALLERY and GALLERY[name].missing()]
    with threads_of_torch(threads), measured_on(device):
        check_clock(clock)
        with progress_bar(total=len(chosen)) as start:
            for name in chosen:
                start(name)
                if name in missing and not only:
                    continue
                rows[name] = measure(name, repeats, clock)
                _report(rows, clock, missing).write(output)  # what is measured survives Ctrl-C
        report = _report(rows, clock, missing)
    report.publish(output)


def measure(name: str, repeats: int, clock: Clock) -> dict[str, Value]:
    """One line of the table."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning about the cost says what the table says
        if name == COMPILED:
            return _compiled(repeats, clock)
        case = GALLERY[name]
        case.check_installed()
        row: dict[str, Value] = {"model": name, "m": case.instances}
        try:
            return row | _errors(case) | _slow(case) | _timed(case, repeats, clock)
        except Exception as error:  # a model that fails is a result too, and the others still run
            text = " ".join(str(error).split())[:200]
            return row | {"mark": "fails", "failure": f"{type(error).__name__}: {text}"}


def _errors(case: GalleryCase) -> dict[str, Value]:
    found: dict[str, Value] = {}
    kinds: dict[str, Kind] = {"error": "instances", "tasks_error": "tasks"}
    for key, kind in kinds.items():
        specimen = case.specimen(min(case.instances, _CHECKED))
        specimen = specimen if case.single else specimen.double()
        found[key] = error_of(specimen.to(here()), kind)
    return found


def _slow(case: GalleryCase) -> dict[str, Value]:
    specimen = case.specimen().to(here())
    named = named_parameters_of(specimen.model)
    tape = Tape(Objectives.of(specimen.instances()), named)
    tape.gramian()
    slow = [name for name, path in tape.paths.items() if path.split()[0] in ("rows", "local")]
    operations = [tape.lost_at.get(name) or tape.paths[name].partition(" ")[2] for name in slow]
    return {
        "slow": f"{len(slow)} of {len(named)}",
        "probed": len(tape.lost_at.keys() - set(slow)),
        "culprit": ", ".join(sorted(set(filter(None, operations)))) or None,
        "slow_names": ", ".join(f"{name} ({tape.paths[name]})" for name in slow),
    }


def _timed(case: GalleryCase, repeats: int, clock: Clock) -> dict[str, Value]:
    steps = {
        "plain": plain_step(case.specimen().to(here())),
        "instances": descent_step(case.specimen().to(here()), "instances"),
        "tasks": descent_step(case.specimen().to(here()), "tasks"),
    }
    found = interleaved(steps, repeats=repeats, warmup=3, clock=clock, budget=30.0)
    ratios = {name: ratio(found[name], found["plain"]) for name in ("instances", "tasks")}
    musts = {"instances": case.must, "tasks": case.tasks_must}
    reached = [ratios[name] <= must for name, must in musts.items() if must is not None]
    return {
        "plain_ms": 1000 * found["plain"].median,
        "ratio": ratios["instances"],
        "must": case.must,
        "mark": None if not reached else "yes" if all(reached) else "missed",
        "tasks_ratio": ratios["tasks"],
        "tasks_must": case.tasks_must,
    }


def _compiled(repeats: int, clock: Clock) -> dict[str, Value]:
    found, milliseconds, instances = compiled_ratio(repeats, clock)
    return {
        "model": "compiled, against uncompiled",
        "m": instances,
        "plain_ms": milliseconds,
        "ratio": found,
        "must": _COMPILED_MUST,
        "mark": "yes" if found <= _COMPILED_MUST else "missed",
    }


def _chosen(only: list[str] | None) -> list[str]:
    names = [*GALLERY, COMPILED]
    for name in only or []:
        if name not in names:
            raise UnknownNameError.of("only", name, names)
    return only or names


def _earlier(output: Path) -> dict[str, dict[str, Value]]:
    """The lines of an earlier run."""
    path = output / "gallery.json"
    if not path.exists():
        return {}
    return {str(row["name"]): dict(row) for row in Report.read(path).rows}


def _report(rows: dict[str, dict[str, Value]], clock: Clock, missing: list[str]) -> Report:
    order = [*GALLERY, COMPILED]
    lines = [{"name": name, **rows[name]} for name in sorted(rows, key=order.index)]
    slow = [str(line["model"]) for line in lines if line.get("mark") == "missed"]
    notes = [
        f"Whole step with the aggregator mean, against the plain step of the same model; float32, "
        f"{clock} time, medians of the rounds. Error: Gramian and update (UPGrad) against one "
        "ordinary backward pass per loss in float64, relative to the lengths of the gradients.",
        f"Slower than it must be: {', '.join(slow) or 'none'}.",
    ]
    notes += [f"{line['model']} fails. {line['failure']}" for line in lines if "failure" in line]
    reasons = {
        "mixes": "Instances really mix",
        "casts": "Not float64 inside",
        "single": "Checked in float32",
    }
    for attribute, text in reasons.items():
        named = {n: getattr(GALLERY[n], attribute) for n in rows if n in GALLERY}
        listed = [f"{name} ({why})" for name, why in named.items() if why]
        if listed:
            notes.append(f"{text}: {'; '.join(listed)}.")
    if missing:
        notes.append(f"Not installed: {', '.join(missing)}.")
    brief = {key: _COLUMNS[key] for key in _BRIEF}
    title = "Models that others wrote"
    versions = environment(*sorted({p for case in GALLERY.values() for p in case.requires}))
    return Report("gallery", title, _COLUMNS, lines, tuple(notes), versions, brief)
