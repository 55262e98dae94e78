"""``bench engines``: a step of Jacobian descent, as a multiple of plain SGD."""

from __future__ import annotations

from pathlib import Path

from examples.lab.bench._cases import CASES, Case
from examples.lab.bench._growth import growth_report, measure_point, plot, points
from examples.lab.bench._memory import peak_memory
from examples.lab.clock import Clock, interleaved, ratio, ratios
from examples.lab.console import progress_bar
from examples.lab.device import measured_on
from examples.lab.figure import check_matplotlib
from examples.lab.folders import writable_folder
from examples.lab.report import Report, Value
from examples.lab.threads import threads_of_torch
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
    "loop": "loop of autograd.grad / plain",
    "loop_mark": "at most 5 % above the loop",
    "autogram": "autogram / plain",
    "autojac": "autojac / plain",
    "faster": "faster than both",
}
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


def engines(
    threads: int = 2,
    clock: Clock = "wall",
    cases: list[str] | None = None,
    repeats: int = 15,
    memory: bool = False,
    growth: bool = False,
    device: str = "cpu",
    output: Path = Path("results"),
) -> None:
    """Time a step of Jacobian descent against the plain mean-loss step of the same model and batch.

    A step is forward, Gramian, weights, and the gradients of the update; inputs are synthetic. All
    engines run in turns, and a ratio is the median of the ratios of each round. Where torchjd is
    installed, its two engines are in the table too; being slow, they get fewer rounds.

    Args:
        threads: Threads of torch.
        clock: "wall", or "cpu" for the processor time of all threads, which other programs disturb
            less.
        cases: Lines of the table by name, e.g. --cases '[mnist-mean, mlp-64]'; all by default.
        repeats: Timed rounds for each line.
        memory: Also measure the peak memory above the model, each in a process of its own (Linux).
        growth: Also draw how the ratio grows with the batch (16 to 256) and with the depth.
        device: Where models and data are: "cpu", "cuda", ...
        output: The folder for engines.json, engines.md and engines_growth.png.
    """
    chosen = _chosen(cases)
    if growth:
        check_matplotlib("`--growth`")
    writable_folder(output)
    with threads_of_torch(threads), measured_on(device):
        total = len(chosen) * (2 if memory else 1) + (len(points()) if growth else 0)
        with progress_bar(total=total) as start:
            rows = []
            for case in chosen:
                start(case.name)
                row = timed(case, repeats, clock)
                if memory:
                    start(f"{case.name}, memory")
                    row |= remembered(case, threads)
                rows.append(row)
            grown = []
            for panel, line, size in points() if growth else []:
                start(f"{line}, {panel} {size}")
                grown.append(measure_point(panel, line, size, repeats, clock))
        report = _report(rows, memory, clock)
    more: list[Path] = []
    if growth:
        more = [plot(grown, output / "engines_growth.png"), *growth_report(grown).write(output)]
    report.publish(output, *more)


def _chosen(names: list[str] | None) -> list[Case]:
    for name in names or []:
        if name not in CASES:
            raise UnknownNameError.of("cases", name, CASES)
    return [CASES[name] for name in names] if names else list(CASES.values())


def timed(case: Case, repeats: int, clock: Clock, seconds: float = 10.0) -> dict[str, Value]:
    """Time one line of the table.

    Args:
        case: The line.
        repeats: Rounds of the plain step and ours.
        clock: Wall or processor time.
        seconds: No round with TorchJD begins later than this.
    """
    steps = {}
    for engine in (*ENGINES, *EXTRACTS):
        if engine in case.skips:
            continue
        step = working_step(engine, case.build, case.aggregator)
        if step is not None:
            steps[engine] = step
    own = {name: step for name, step in steps.items() if name not in OPPONENTS}
    first = interleaved(own, repeats=repeats, warmup=3, clock=clock)
    plain, ours = first["plain"], first["ours"]
    spread = ratios(ours, plain)
    row: dict[str, Value] = {
        "case": case.name,
        "m": _objectives(case),
        "plain_ms": 1000 * plain.median,
        "ours": spread.median,
        "lower": spread.lower,
        "upper": spread.upper,
        "must": case.must,
        "mark": "yes" if spread.median <= case.must else "missed",
        "ours_low": ratio(first["ours_low"], plain),
        "gramian": ratio(first["gramian"], plain),
        "norms": ratio(first["norms"], plain),
        "norms_mark": "yes" if ratio(first["norms"], first["gramian"]) < 1 else "missed",
    }
    if "loop" in first:
        row["loop"] = ratio(first["loop"], plain)
        row["loop_mark"] = "yes" if ratio(ours, first["loop"]) <= _LOOP_MUST else "missed"
    opponents = [name for name in OPPONENTS if name in steps]
    if opponents:
        # Without ours, which would pay for memory that they have given back before.
        steps = {name: steps[name] for name in ("plain", *opponents)}
        second = interleaved(steps, repeats=repeats, warmup=0, clock=clock, budget=seconds)
        theirs = {name: ratio(second[name], second["plain"]) for name in opponents}
        row |= {**theirs, "faster": spread.median < min(theirs.values())}
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


def _report(rows: list[dict[str, Value]], memory: bool, clock: Clock) -> Report:
    slow = [str(row["case"]) for row in rows if row["mark"] == "missed"]
    beaten = [str(row["case"]) for row in rows if row.get("faster") is False]
    looped = [str(row["case"]) for row in rows if row.get("loop_mark") == "missed"]
    notes = [
        f"Ratios to the plain mean-loss step, {clock} time, medians of the rounds.",
        f"Slower than it must be: {', '.join(slow) or 'none'}. "
        f"Slower than TorchJD: {', '.join(beaten) or 'none'}. "
        "Tasks more than 5 % slower than a plain loop of autograd.grad over them: "
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
    columns = _COLUMNS | (_MEMORY_COLUMNS if memory else {})
    return Report("engines", "Jacobian descent against plain SGD", columns, rows, tuple(notes))
