"""``bench engines``: a step of Jacobian descent, as a multiple of plain SGD."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from examples.lab.bench._cases import CASES, Case
from examples.lab.bench._growth import growth_report, measure_point, plot, points
from examples.lab.bench._memory import peak_memory
from examples.lab.clock import Clock, interleaved, ratio, ratios
from examples.lab.console import progress_bar
from examples.lab.device import measured_on
from examples.lab.figure import check_matplotlib
from examples.lab.folders import writable_folder
from examples.lab.report import Report, Value
from examples.lab.threads import busy_cores, threads_of_torch
from examples.lab.work.steps import ENGINES, EXTRACTS, OPPONENTS, working_step
from lightning_jd.errors import UnknownNameError

_COLUMNS = {
    "case": "work",
    "m": "objectives",
    "plain_ms": "plain ms",
    "ours": "ours / plain",
    "lower": "quartile",
    "upper": "quartile",
    "must": "must",
    "mark": "reached",
    "ours_low": "low memory / plain",
    "gramian": "gramian / plain",
    "norms": "gradient_norms / plain",
    "norms_mark": "norms below the Gramian",
    "loop": "hand-written loop / plain",
    "loop_mark": "at most 5 % above the loop",
    "autogram": "autogram / plain",
    "autojac": "autojac / plain",
    "faster": "faster than both",
}
_BUSY_COLUMNS = {
    "busy_ours": "busy: ours / plain",
    "busy_loop": "busy: loop / plain",
    "busy_autogram": "busy: autogram / plain",
    "busy_autojac": "busy: autojac / plain",
}
_PATIENCE = 3.0  # seconds: a longer step is not taken beside busy processes
_MEMORY_COLUMNS = {
    "plain_mb": "plain MB",
    "ours_memory": "memory: ours / plain",
    "ours_first_memory": "memory: ours, first steps / plain",
    "ours_low_memory": "memory: low / plain",
    "autogram_memory": "memory: autogram / plain",
    "memory_mark": "memory reached",
}
_MEMORY_MUST = 2.5
_FIRST_MEMORY_MUST = 1.5  # of the later steps
_LOOP_MUST = 1.05
_OWN, _OTHERS = ("plain", "ours", "ours_low", *EXTRACTS), ("loop", *OPPONENTS)


def engines(
    threads: int | None = None,
    clock: Clock = "wall",
    cases: list[str] | None = None,
    skips: Sequence[str] = (),
    repeats: int = 15,
    seconds: float = 10.0,
    busy: bool = False,
    memory: bool = False,
    growth: bool = False,
    device: str = "cpu",
    output: Path = Path("results"),
) -> None:
    """Time a step of Jacobian descent against the plain mean-loss step of the same model and batch.

    A step is forward, Gramian, weights, and the gradients of the update; inputs are synthetic. All
    engines run in turns, and a ratio is the median of the ratios of each round. A hand-
    written loop over tasks or examples is in the table and, where torchjd is installed, its two
    engines; being slow, they get fewer rounds.

    Args:
        threads: Threads of torch; by default as many as torch takes by itself.
        clock: "wall", or "cpu" for the processor time of all threads, which other programs disturb
            less.
        cases: Lines of the table by name, e.g. --cases '[mnist-mean, mlp-64]'; all by default.
        skips: What is not timed, to save time: loop, autogram, autojac.
        repeats: Timed rounds for each line.
        seconds: No round begins after so many of a line, which has two or three rows of rounds.
        busy: Also time steps beside one busy process per core.
        memory: Also measure the peak memory above the model, each in a process of its own (Linux).
        growth: Also draw how the ratio grows with the batch (16 to 256) and with the depth.
        device: Where models and data are: "cpu", "cuda", ...
        output: The folder for engines.json, engines.md and engines_growth.png.
    """
    chosen = [replace(case, skips=(*case.skips, *skips)) for case in _chosen(cases)]
    for name in skips:
        if name not in _OTHERS:
            raise UnknownNameError.of("skips", name, _OTHERS)
    if growth:
        check_matplotlib("`--growth`")
    writable_folder(output)
    with threads_of_torch(threads), measured_on(device):
        total = len(chosen) * (2 if memory else 1) + (len(points()) if growth else 0)
        with progress_bar(total=total) as start:
            rows = []
            for case in chosen:
                start(case.name)
                row = timed(case, repeats, clock, seconds, busy)
                if memory:
                    start(f"{case.name}, memory")
                    row |= remembered(case, torch.get_num_threads())
                rows.append(row)
            grown = []
            for panel, line, size in points() if growth else []:
                start(f"{line}, {panel} {size}")
                grown.append(measure_point(panel, line, size, repeats, clock))
        report = _report(rows, memory, busy, clock)
    more: list[Path] = []
    if growth:
        more = [plot(grown, output / "engines_growth.png"), *growth_report(grown).write(output)]
    report.publish(output, *more)


def _chosen(names: list[str] | None) -> list[Case]:
    for name in names or []:
        if name not in CASES:
            raise UnknownNameError.of("cases", name, CASES)
    return [CASES[name] for name in names] if names else list(CASES.values())


def timed(
    case: Case, repeats: int, clock: Clock, seconds: float = 10.0, busy: bool = False
) -> dict[str, Value]:
    """Time one line of the table.

    Args:
        case: The line.
        repeats: Rounds of each row of rounds.
        clock: Wall or processor time.
        seconds: No round begins later than this in its row of rounds.
        busy: Whether to time steps beside busy processes, too.
    """
    built = {
        engine: working_step(engine, case.build, case.aggregator)
        for engine in (*ENGINES, *EXTRACTS)
        if engine not in case.skips
    }
    steps = {engine: step for engine, step in built.items() if step is not None}
    own = {name: step for name, step in steps.items() if name in _OWN}
    # Without the others, which would pay for memory that these have given back before.
    others = {name: step for name, step in steps.items() if name not in _OWN or name == "plain"}
    first = interleaved(own, repeats=repeats, warmup=3, clock=clock, budget=seconds)
    second = interleaved(others, repeats=repeats, warmup=0, clock=clock, budget=seconds)
    spread = ratios(first["ours"], first["plain"])
    found = {name: ratio(second[name], second["plain"]) for name in others if name != "plain"}
    theirs = [found[name] for name in OPPONENTS if name in found]
    row: dict[str, Value] = {
        "case": case.name,
        "m": _objectives(case),
        "plain_ms": 1000 * first["plain"].median,
        "ours": spread.median,
        "lower": spread.lower,
        "upper": spread.upper,
        "must": case.must,
        "mark": "yes" if spread.median <= case.must else "missed",
        **{name: ratio(first[name], first["plain"]) for name in ("ours_low", *EXTRACTS)},
        "norms_mark": "yes" if ratio(first["norms"], first["gramian"]) < 1 else "missed",
        **found,
    }
    if "loop" in found:
        row["loop_mark"] = "yes" if spread.median <= _LOOP_MUST * found["loop"] else "missed"
    if theirs:
        row["faster"] = spread.median < min(theirs)
    if busy:
        quick = {name for name in others if second[name].median <= _PATIENCE}
        chosen = {name: steps[name] for name in steps if name in (*_OWN[:2], *quick)}
        with busy_cores():
            third = interleaved(chosen, repeats=repeats, warmup=0, clock=clock, budget=seconds)
        row["busy_plain_ms"] = 1000 * third["plain"].median
        row |= {f"busy_{name}": ratio(third[name], third["plain"]) for name in chosen}
    return row


def _objectives(case: Case) -> int:
    return len(case.build().losses())


def remembered(case: Case, threads: int) -> dict[str, Value]:
    """Measure the memory of one line of the table: first steps, and later ones."""
    engines_here = ("plain", "ours", "ours_low", "autogram")
    peaks = {engine: peak_memory(case.name, engine, threads) for engine in engines_here}
    plain, ours, low = peaks["plain"], peaks["ours"], peaks["ours_low"]
    assert plain is not None
    assert ours is not None
    assert low is not None
    row: dict[str, Value] = {"plain_mb": plain.later}
    for engine, peak in peaks.items():
        if engine != "plain" and peak is not None:
            row[f"{engine}_memory"] = peak.later / plain.later
            row[f"{engine}_first_memory"] = peak.first / plain.later
    autogram = peaks["autogram"]
    reached = (
        ours.later <= _MEMORY_MUST * plain.later
        and ours.first <= _FIRST_MEMORY_MUST * ours.later
        and (autogram is None or ours.later <= autogram.later)
        and (case.low_memory_must is None or low.later <= case.low_memory_must * plain.later)
    )
    return {**row, "memory_mark": "yes" if reached else "missed"}


def _report(rows: list[dict[str, Value]], memory: bool, busy: bool, clock: Clock) -> Report:
    slow = [str(row["case"]) for row in rows if row["mark"] == "missed"]
    beaten = [str(row["case"]) for row in rows if row.get("faster") is False]
    looped = [str(row["case"]) for row in rows if row.get("loop_mark") == "missed"]
    notes = [
        f"Ratios to the plain mean-loss step, {clock} time, medians of the rounds, "
        f"{torch.get_num_threads()} thread(s) of torch.",
        f"Slower than it must be: {', '.join(slow) or 'none'}. "
        f"Slower than TorchJD: {', '.join(beaten) or 'none'}. "
        "More than 5 % slower than a hand-written loop: "
        f"{', '.join(looped) or 'none'}.",
    ]
    skipped = [str(row["case"]) for row in rows if CASES[str(row["case"])].skips]
    if skipped:
        notes.append(
            "Not run because one step takes minutes, so that only the other engine of TorchJD is "
            f"compared: autojac on {', '.join(skipped)}."
        )
    if memory:
        hungry = [str(row["case"]) for row in rows if row.get("memory_mark") == "missed"]
        notes.append(
            f"Memory must be at most {_MEMORY_MUST} times that of the plain step and not above "
            "autogram's, and at most 1.25 times in the low-memory mode of the paper's CNNs. That "
            "is judged on later steps; the first three, which check, tune and record, may take "
            f"{_FIRST_MEMORY_MUST} times as much as they. "
            f"Missed: {', '.join(hungry) or 'none'}."
        )
    columns = _COLUMNS | (_BUSY_COLUMNS if busy else {}) | (_MEMORY_COLUMNS if memory else {})
    return Report("engines", "Jacobian descent against plain SGD", columns, rows, tuple(notes))
