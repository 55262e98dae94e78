"""``bench weights``: from the Gramian to the weights, against TorchJD."""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from examples.lab.bench._gramians import FAMILIES
from examples.lab.clock import Clock, Timing, interleaved, ratio
from examples.lab.console import progress_bar
from examples.lab.device import here, measured_on
from examples.lab.folders import writable_folder
from examples.lab.report import Report, Value
from examples.lab.threads import busy_cores, one_thread
from lightning_jd.aggregators import GramianAggregator, resolve
from lightning_jd.errors import ArgumentError, UnknownNameError
from lightning_jd.linalg import RelativeTo, dual_cone_residuals, dual_cone_weights

# Our name to the class of torchjd that computes the same weights.
_OPPONENTS = {
    "upgrad": "UPGradWeighting",
    "dualproj": "DualProjWeighting",
    "mgda": "MGDAWeighting",
    "imtlg": "IMTLGWeighting",
    "pcgrad": "PCGradWeighting",
    "alignedmtl": "AlignedMTLWeighting",
}
_CERTIFIED = ("upgrad", "dualproj")  # the methods that have a regularisation and a certificate
_HUGE = 1024
_SECONDS = {128: 0.005, 256: 0.025, _HUGE: 1.5}  # for UPGrad along a run of training
_SECONDS_FOR_HUGE = 10.0
_OF_ONE_THREAD = 1.5  # what the default threads may take
_COLUMNS = {
    "method": "method",
    "family": "Gramian",
    "m": "m",
    "ours_ms": "ours ms",
    "threads": "in times of one thread",
    "busy_ms": "busy: ours ms",
    "busy_threads": "busy: in times of one thread",
    "torchjd_ms": "TorchJD ms",
    "ratio": "times faster",
    "target": "target",
    "mark": "reached",
    "violation_0": "violation, reg 0",
    "slackness_0": "slackness, reg 0",
    "violation_reg": "violation, reg 1e-4",
    "slackness_reg": "slackness, reg 1e-4",
    "violation_row": "violation, reg 1e-4 of the row",
    "slackness_row": "slackness, reg 1e-4 of the row",
}
# A terminal has room for the worse of the two residuals only.
_ON_TERMINAL = {key: _COLUMNS[key] for key in list(_COLUMNS)[:9]} | {
    "mark": "target",
    "residual_0": "residual, reg 0",
    "residual_reg": "residual, reg 1e-4",
    "residual_row": "residual, of the row",
}


class _Case(NamedTuple):
    method: str
    family: str
    m: int

    @property
    def target(self) -> float | None:
        """How many times faster than TorchJD this must be."""
        if self.method == "upgrad":
            return {8: 2.0, 32: 2.0, 64: 10.0, 256: 50.0}.get(self.m)
        return 2.0 if self.method == "dualproj" and 32 <= self.m < _HUGE else None

    @property
    def seconds(self) -> float | None:
        """How long this may take."""
        if self.method != "upgrad":
            return None
        if self.family.startswith("run_"):
            return _SECONDS.get(self.m)
        return _SECONDS_FOR_HUGE if self.m == _HUGE else None


def weights(
    sizes: Sequence[int] = (2, 4, 8, 32, 64, 128, 256),
    families: Sequence[str] = tuple(FAMILIES),
    methods: Sequence[str] = tuple(_OPPONENTS),
    repeats: int = 20,
    m1024: bool = True,
    busy: bool = False,
    clock: Clock = "wall",
    device: str = "cpu",
    output: str = "results",
) -> None:
    """Time the weights of each aggregator against TorchJD, and certify ours.

    Both are given the same Gramian, in float64 or, where it is like one of a run of training, in
    float32, and, for UPGrad and DualProj, the same regularisation 1e-4; they run in turns, and
    "times faster" is the median of the ratios.
    Violation and slackness are the worst residuals of the optimality conditions of our answers
    (0 is exact) on the scale where every row has norm 1: without regularisation, with one relative
    to the trace, and with one relative to each row. Without torchjd installed its columns
    stay empty.

    Args:
        sizes: Numbers of objectives m, e.g. --sizes '[8, 32]'.
        families: Kinds of Gramians: gaussian, conflicting, uneven, low_rank, duplicates, network,
            and those of a run of training: run_start, run_early, run_late.
        methods: Aggregators by name; those beyond upgrad and dualproj run on two families only.
        repeats: Rounds for each case; cases that take long get fewer.
        m1024: Also time UPGrad and DualProj with 1024 objectives (without TorchJD: minutes).
        busy: Also time ours of UPGrad and DualProj beside one busy process per core.
        clock: "wall", or "cpu" for processor time, which other programs disturb less.
        device: Where the Gramians are: "cpu", "cuda", ...
        output: The folder for weights.json and weights.md.
    """
    cases = _cases(sizes, families, methods, m1024)
    writable_folder(output)
    rows = []
    with measured_on(device):
        with progress_bar(total=len(cases)) as start:
            for case in cases:
                start(f"{case.method} {case.family} m={case.m}")
                rows.append(_measured(case, repeats, clock))
        if busy:
            with busy_cores():
                for case, row in zip(cases, rows, strict=True):
                    row |= _busy(case, repeats)
        report = _report(rows, clock)
    report.publish(output)


def _report(rows: Sequence[dict[str, Value]], clock: Clock) -> Report:
    missed = [f"{r['method']} {r['family']} m={r['m']}" for r in rows if r["mark"] == "missed"]
    slow = [
        f"{r['family']} m={r['m']}"
        for r in rows
        if max(float(str(r.get(key) or 0)) for key in ("threads", "busy_threads")) > _OF_ONE_THREAD
    ]
    notes = (
        f"Milliseconds are medians of the {clock} clock; times faster is the median of the ratios "
        "of each round; residuals are relative to the largest weight.",
        f"Targets missed: {', '.join(missed) or 'none'}.",
        f"UPGrad by default threads takes more than {_OF_ONE_THREAD:g} times as long as by one: "
        f"{', '.join(slow) or 'never'}.",
    )
    title = "Weights from a Gramian, against TorchJD"
    return Report("weights", title, _COLUMNS, rows, notes, brief=_ON_TERMINAL)


def _cases(
    sizes: Sequence[int], families: Sequence[str], methods: Sequence[str], m1024: bool
) -> list[_Case]:
    for kind, names, known in (("families", families, FAMILIES), ("methods", methods, _OPPONENTS)):
        for name in names:
            if name not in known:
                raise UnknownNameError.of(kind, name, known)
    if not sizes or min(sizes) < 1:
        raise ArgumentError(f"`sizes` must be positive numbers of objectives, got {list(sizes)}.")

    def every() -> Iterator[_Case]:
        for method in methods:
            for m in [*sizes, _HUGE] if m1024 and method in _CERTIFIED else sizes:
                for family in families:
                    certified = method in _CERTIFIED
                    # One harmless and one real family tell enough about the cheaper methods.
                    if certified or (family in ("gaussian", "network") and m <= 128):
                        yield _Case(method, family, m)

    return list(every())


def _measured(case: _Case, repeats: int, clock: Clock) -> dict[str, Value]:
    G = _gramian(case)
    aggregator = resolve(case.method)
    assert isinstance(aggregator, GramianAggregator)
    candidates: dict[str, Callable[[], object]] = {"ours": lambda: aggregator.weights(G)}
    opponent = _opponent(case.method) if case.m < _HUGE else None
    if opponent is not None:
        candidates["torchjd"] = lambda: opponent(G)
    slow = case.m >= 256
    if slow and opponent is not None:
        candidates["ours"]()  # a warm-up of its own: one round of the opponent may take seconds
    timings = interleaved(
        candidates, repeats=repeats, warmup=0 if slow else 2, clock=clock, budget=1.0
    )
    row: dict[str, Value] = {"method": case.method, "family": case.family, "m": case.m}
    row |= _comparison(case, timings)
    if case.method == "upgrad":
        _, row["threads"] = _in_times_of_one_thread(candidates["ours"], repeats)
    if case.method in _CERTIFIED:
        row |= _certificates(case, G)
    return row


def _busy(case: _Case, repeats: int) -> dict[str, Value]:
    if case.method not in _CERTIFIED:
        return {}
    G, aggregator = _gramian(case), resolve(case.method)
    assert isinstance(aggregator, GramianAggregator)
    found, threads = _in_times_of_one_thread(lambda: aggregator.weights(G), repeats)
    return {"busy_ms": 1e3 * found, "busy_threads": threads}


def _in_times_of_one_thread(solve: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Seconds by the wall clock with default threads, and relative to one thread."""

    def timed() -> Timing:
        found = interleaved({"": solve}, repeats=repeats, warmup=1, clock="wall", budget=0.5)
        return found[""]

    default = timed()
    with one_thread():  # to switch takes longer than a small program
        one = timed()
    return default.median, default.median / one.median


def _gramian(case: _Case) -> Tensor:
    G = FAMILIES[case.family](case.m)
    if here().type == "mps":  # has no float64
        G = G.to(torch.float32)
    return G.to(here())


def _opponent(method: str) -> Callable[[Tensor], Tensor] | None:
    if importlib.util.find_spec("torchjd") is None:
        return None
    from torchjd import aggregation, linalg

    arguments = {}
    if method in _CERTIFIED:
        # Its normalisation is skipped for traces below `norm_eps`: at 0 both solve one program.
        arguments["projector"] = linalg.QuadprogProjector(norm_eps=0.0, reg_eps=1e-4)
    weighting: Callable[[Tensor], Tensor] = getattr(aggregation, _OPPONENTS[method])(**arguments)
    return weighting


def _comparison(case: _Case, timings: dict[str, Timing]) -> dict[str, Value]:
    ours, theirs = timings["ours"], timings.get("torchjd")
    row: dict[str, Value] = {"rounds": len(ours.samples)}
    for name, timing in timings.items():
        row |= {
            f"{name}_ms": 1e3 * timing.median,
            f"{name}_ms_lower": 1e3 * timing.lower,
            f"{name}_ms_upper": 1e3 * timing.upper,
        }
    target, met = None, None
    if theirs is not None:
        row["ratio"] = ratio(theirs, ours)
    if case.seconds is not None:
        target, met = f"<= {1e3 * case.seconds:,g} ms", ours.median <= case.seconds
    elif theirs is not None and case.target is not None:
        target, met = f">= {case.target:g}x", ratio(theirs, ours) >= case.target
    mark = {None: "", True: "met", False: "missed"}[met]
    return row | {"target": target, "mark": mark}


def _certificates(case: _Case, G: Tensor) -> dict[str, Value]:
    targets = torch.full((case.m,), 1 / case.m, dtype=G.dtype, device=G.device)
    if case.method == "upgrad":
        targets = targets.diag()
    row: dict[str, Value] = {}
    programs: tuple[tuple[str, float, RelativeTo], ...] = (
        ("0", 0.0, "trace"),
        ("reg", 1e-4, "trace"),
        ("row", 1e-4, "row"),
    )
    for name, reg, scale in programs:
        if case.m == _HUGE and reg == 0:
            continue  # a singular program of this size may take minutes
        found = dual_cone_weights(G, targets, reg=reg, relative_to=scale)
        residuals = dual_cone_residuals(G, targets, found, reg=reg, relative_to=scale)
        violation, slackness = float(residuals.violation.max()), float(residuals.slackness.max())
        row[f"violation_{name}"], row[f"slackness_{name}"] = violation, slackness
        row[f"residual_{name}"] = max(violation, slackness)
    return row
