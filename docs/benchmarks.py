"""Write tables and figures of docs/benchmarks.md, and a line of the README, from docs/benchmarks/*.json.

    PYTHONPATH=. python docs/benchmarks.py              # the page again, from the files
    PYTHONPATH=. python docs/benchmarks.py --measure    # take steps and weights again (12 minutes), then the page

`--measure` takes what a user notices first: steps of the networks below, and the weights, by the
clock on the wall with the threads that torch takes by itself, on an idle machine and beside one busy
process per core. Let nothing else run. The other files come from `python -m examples.lab bench NAME`.
The words of the page are typed by hand; what stands between `<!-- table: ... -->` and `<!-- end -->`
is not. The JSON files have more lines and columns than the page has room for.
"""

import re
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from shutil import copy
from statistics import median
from tempfile import TemporaryDirectory

from matplotlib import rcParams
from matplotlib.figure import Figure

from examples.lab.bench.engines import engines
from examples.lab.bench.weights import weights as weights_of
from examples.lab.report import Report

DOCS = Path(__file__).parent
rcParams["svg.hashsalt"] = "docs"  # so that equal figures are equal files
FIGURES = DOCS / "figures"
OURS, THEIRS, GREEN, GRAY = "#1f77b4", "#ff7f0e", "#2ca02c", "#7f7f7f"
Row = dict[str, object]

#: Lines of `bench engines`, as a reader calls them.
EXAMPLES = {
    "svhn-upgrad": "CNN, SVHN",
    "cifar10-upgrad": "CNN, CIFAR-10",
    "cifar10-128": "CNN, CIFAR-10",
    "cifar10-256": "CNN, CIFAR-10",
    "eurosat-upgrad": "CNN, EuroSAT",
    "mnist-upgrad": "CNN, MNIST",
    "mlp-64": "MLP 784-1024-1024-10",
    "mlp-512-128": "MLP 784-512-512-10",
    "mlp-512-256": "MLP 784-512-512-10",
    "resnet18": "ResNet-18, GroupNorm",
    "transformer-short-32": "transformer, 3 layers",
    "transformer-short-128": "transformer, 3 layers",
    "transformer": "transformer, 4 layers",
    "transformer-256": "transformer, 4 layers",
}
TASKS = {
    "mlp-8-tasks": "MLP trunk",
    "mlp-40-tasks": "MLP trunk",
    "cnn-8-tasks": "CNN trunk",
    "physics": "physics-informed network",
}
WALL = "wall clock, torch's default threads, medians; busy: beside one busy process per core"
SLOW = ("transformer-256",)  # left out by `--measure`
#: Kinds of methods that cost the same, with those that stand for them.
KINDS = {
    "aggregators that need the Gramian": "alignedmtl cagrad config constant crmogm dualproj fairgrad "
    "gradnorm gradvac imtlg krum mean mgda nashmtl pcgrad primary rgw sum upgrad",
    "`dbmtl`, `excessmtl`, `mconfig`, `moco` (rows by task)": "dbmtl excessmtl mconfig moco",
    "`graddrop` (rows)": "graddrop",
    "`modo`, `sdmgrad` (two samples)": "modo sdmgrad",
    "`trimmedmean` (rows, sorted)": "trimmedmean",
    "`fromfeatures` around `upgrad`": "fromfeatures",
    "`weightsevery` around `upgrad`, n = 10": "weightsevery",
    "balancers": "dwa equal famo gls imtll loglosses rlw stch uw",
}


def report(name: str) -> Report:
    return Report.read(DOCS / "benchmarks" / f"{name}.json")


def lines(name: str, key: str) -> dict[str, Row]:
    return {str(row[key]): dict(row) for row in report(name).rows}


def number(value: object, digits: int = 3) -> str:
    if value is None:
        return "-"
    assert isinstance(value, (int, float))
    if value == 0 or abs(value) < 1e-3:
        return f"{value:.{digits}g}"
    return (
        f"{value:,.0f}"
        if abs(value) >= 100 or isinstance(value, int)
        else f"{value:#.{digits}g}".rstrip(".")
    )


def taken(name: str, how: str, *packages: str) -> str:
    """When, with which versions and how a table was measured."""
    e = report(name).environment
    versions = ", ".join(f"{each} {e[each]}" for each in ("lightning-jd", "torch", *packages))
    return f"*{e['date']}: {versions}; {e['processor']} CPU, {how}.*"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(head)
    rule = ["---", *["--:"] * (len(heads) - 1)]
    return "\n".join(f"| {' | '.join(each)} |" for each in [heads, rule, *map(list, rows)])


def examples() -> str:
    return steps(EXAMPLES, "network, examples")


def tasks() -> str:
    return steps(TASKS, "network, tasks")


def steps(cases: Mapping[str, str], first: str) -> str:
    """Lines of `bench engines`, and when those of another day were taken."""
    found = {case: row for case, row in lines("engines", "case").items() if case in cases}
    columns: dict[str, Callable[[Row], object]] = {
        "plain step, ms": lambda row: row["plain_ms"],
        "ours": lambda row: row["ours"],
        "ours, busy machine": lambda row: row.get("busy_ours"),
        "loop by hand": lambda row: row.get("loop"),
        "TorchJD": theirs,
    }
    columns = {name: cell for name, cell in columns.items() if any(map(cell, found.values()))}
    rows = [
        [f"{title}, {found[case]['m']}", *(number(cell(found[case])) for cell in columns.values())]
        for case, title in cases.items()
        if case in found
    ]
    notes = report("engines").notes[0]
    how = "CPU time of one thread, medians" if "cpu time" in notes else WALL
    return table([first, *columns], rows) + "\n\n" + taken("engines", how, "torchjd")


def theirs(row: Row) -> float | None:
    """The faster engine of TorchJD."""
    both = (row.get(engine) for engine in ("autogram", "autojac"))
    return min((float(str(each)) for each in both if each is not None), default=None)


def memory() -> str:
    found = lines("memory", "case")
    keys = ("plain_mb", "ours_memory", "ours_first_memory", "ours_low_memory", "autogram_memory")
    rows = [
        [f"{title}, {row['m']}", *(number(row.get(key)) for key in keys)]
        for case, title in EXAMPLES.items()
        if (row := found.get(case)) is not None
    ]
    head = ["network, examples", "plain step, MB", "ours", "ours, first steps", '`memory="low"`']
    how = "peak of the process above model and batch, one thread"
    return table([*head, "TorchJD"], rows) + "\n\n" + taken("memory", how, "torchjd")


def models() -> str:
    rows = []
    for row in report("gallery").rows:
        cause = f"{row['slow']}: {row['culprit']}" if row.get("culprit") else "none"
        ratios, errors = (
            (row["ratio"], row.get("tasks_ratio")),
            (row.get("error"), row.get("tasks_error")),
        )
        worst = max((float(str(error)) for error in errors if error is not None), default=None)
        rows.append([str(row["model"]), *map(number, ratios), number(worst, 2), cause])
    head = ["model", "per example", "two tasks", "largest error", "parameters with a pass per row"]
    return (
        table(head, rows)
        + "\n\n"
        + taken(
            "gallery",
            "float32, CPU time of one thread, medians",
            "transformers",
            "diffusers",
            "torch_geometric",
        )
    )


def methods() -> str:
    found = lines("methods", "method")
    rows = []
    for kind, names in KINDS.items():
        cells = []
        for tasks in ("2", "8", "40"):
            values = sorted(float(str(found[name][tasks])) for name in names.split())
            low, high = number(values[0]), number(values[-1])
            cells.append(low if low == high else f"{low} to {high}")
        rows.append([kind, *cells])
    return (
        table(["method", "2 tasks", "8 tasks", "40 tasks"], rows)
        + "\n\n"
        + taken("methods", "CPU time of one thread, medians of 10 rounds")
    )


def weights() -> str:
    """Medians over the kinds of Gramians."""
    rows = []
    for m in (8, 32, 64, 128, 256, 1024):
        keys = ("ours_ms", "busy_ms", "torchjd_ms")
        values = [_over(method, m, key) for method in ("upgrad", "dualproj") for key in keys]
        rows.append([str(m), *map(number, values)])
    head = ["m", "UPGrad, ms", "busy", "TorchJD's", "DualProj, ms", "busy", "TorchJD's"]
    return table(head, rows) + "\n\n" + taken("weights", WALL, "torchjd", "quadprog")


def _over(method: str, m: int, key: str) -> float | None:
    rows = [r for r in report("weights").rows if (r["method"], r["m"]) == (method, m)]
    values = [float(str(row[key])) for row in rows if row.get(key) is not None]
    return median(values) if values else None


def processes() -> str:
    rows = [
        [str(r["work"])]
        + [number(r[key]) for key in ("plain_ms", "jd_ms", "ratio", "gradient_mb", "measured_mb")]
        for r in report("ddp").rows
    ]
    head = [
        "network, objectives",
        "plain DDP, ms",
        "UPGrad, ms",
        "ratio",
        "gradient, MB",
        "added, MB",
    ]
    return (
        table(head, rows)
        + "\n\n"
        + taken("ddp", "wall clock, gloo, medians of 60 steps; 1 MB is 10^6 bytes")
    )


def language() -> str:
    (r,) = report("scale").rows
    keys = ("plain_ms", "ours", "first", "ours_memory", "ours_first_memory")
    rows = [[number(r[key]) for key in keys]]
    head = ["plain step, ms", "ours", "first step", "memory", "memory of the first steps"]
    return (
        table(head, rows)
        + "\n\n"
        + taken(
            "scale", "CPU time of one thread, medians of 3 rounds, without the model in the memory"
        )
    )


def tiny() -> str:
    rows = []
    for r in report("launches").rows:
        keys = ("plain_us", "mean", "upgrad", "torchjd_upgrad", "upgrad_kernels")
        rows.append([str(r["case"]), *(number(r[key]) for key in keys)])
    head = [
        "network",
        "plain step, µs",
        "ours, `mean`",
        "ours, `upgrad`",
        "TorchJD, UPGrad",
        "kernels",
    ]
    return (
        table(head, rows)
        + "\n\n"
        + taken(
            "launches",
            "CPU time of one thread, medians of 100 rounds, kernels at batch 32",
            "torchjd",
        )
    )


def draw_steps() -> Figure:
    """Bars of the first two tables."""
    found = lines("engines", "case")
    panels = {"one objective per example": EXAMPLES, "one objective per task": TASKS}
    panels = {
        title: {case: name for case, name in cases.items() if case in found}
        for title, cases in panels.items()
    }
    figure = Figure(figsize=(8, 1 + 0.38 * max(map(len, panels.values()))), layout="constrained")
    axes = figure.subplots(1, 2, sharex=True, width_ratios=[1, 1])
    for axis, (title, cases) in zip(axes, panels.items(), strict=True):
        names = [f"{each.replace('`', '')}, {found[case]['m']}" for case, each in cases.items()]
        rows = [found[case] for case in cases]
        for offset, values, colour, label in (
            (-0.2, [float(str(r["ours"])) for r in rows], OURS, "lightning_jd"),
            (0.2, [theirs(r) or 0.0 for r in rows], THEIRS, "TorchJD"),
        ):
            places = [i + offset for i in range(len(rows))]
            axis.barh(places, values, 0.38, color=colour, label=label)
            for place, value in zip(places, values, strict=True):
                if value:
                    axis.text(value * 1.08, place, number(value, 2), va="center", fontsize=8)
        axis.set_yticks(range(len(rows)), names)
        axis.set(xscale="log", title=title, xlabel="plain steps", xlim=(0.5, 600))
        axis.set_xticks([1, 10, 100], ["1", "10", "100"])
        axis.invert_yaxis()
        axis.axvline(1, color=GRAY, lw=1)
        axis.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def draw_growth() -> Figure:
    """The cost over the batch and over the depth, at one scale."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    panels = {"batch": "examples in the batch", "depth": "layers"}
    for axis, (panel, label) in zip(
        figure.subplots(1, 2, sharey=True), panels.items(), strict=True
    ):
        rows = [row for row in report("engines_growth").rows if row["panel"] == panel]
        for line in dict.fromkeys(str(row["line"]) for row in rows):
            points = [(row["size"], row["ratio"]) for row in rows if row["line"] == line]
            colour = {"C": OURS, "M": THEIRS, "t": GREEN}[line[0]]
            axis.plot(*zip(*points, strict=True), marker="o", ms=4, color=colour, label=line)
        sizes = sorted({int(str(row["size"])) for row in rows})
        axis.set_xscale("log", base=2)
        axis.set_xticks(sizes, [str(size) for size in sizes])
        axis.set(xlabel=label, ylim=(0, 2.7))
        axis.axhline(1, color=GRAY, lw=1)
        axis.legend(frameon=False, fontsize=8, loc="lower left")
        axis.spines[["top", "right"]].set_visible(False)
        if panel == "batch":
            axis.set_ylabel("plain steps")
    return figure


def draw_models() -> Figure:
    """One bar for each model, sorted."""
    rows = [row for row in report("gallery").rows if "tasks_ratio" in row]
    rows.sort(key=lambda row: float(str(row["ratio"])))
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axis = figure.subplots()
    values = [float(str(row["ratio"])) for row in rows]
    colours = [THEIRS if row.get("culprit") else OURS for row in rows]
    axis.bar(range(len(rows)), values, color=colours)
    axis.set_xticks(range(len(rows)), [str(row["model"]) for row in rows], rotation=60, ha="right")
    axis.tick_params(axis="x", labelsize=7.5)
    axis.set(
        yscale="log",
        ylabel="plain steps, per example",
        ylim=(0.8, 20),
        xlim=(-0.7, len(rows) - 0.3),
    )
    axis.set_yticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    axis.axhline(1, color=GRAY, lw=1)
    axis.spines[["top", "right"]].set_visible(False)
    for colour, label in (
        (OURS, "one pass for all examples"),
        (THEIRS, "some or all parameters: one pass per example"),
    ):
        axis.bar(0, 0, color=colour, label=label)
    axis.legend(frameon=False, loc="upper left")
    return figure


def draw_weights() -> Figure:
    """Medians over the kinds of Gramians."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    sizes = (2, 4, 8, 32, 64, 128, 256, 1024)
    for axis, method in zip(
        figure.subplots(1, 2, sharey=True), ("upgrad", "dualproj"), strict=True
    ):
        for key, colour, label in (
            ("ours_ms", OURS, "lightning_jd"),
            ("torchjd_ms", THEIRS, "TorchJD"),
        ):
            points = [(m, value) for m in sizes if (value := _over(method, m, key)) is not None]
            axis.plot(*zip(*points, strict=True), marker="o", ms=4, color=colour, label=label)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks([2, 8, 32, 128, 1024], ["2", "8", "32", "128", "1024"])
        axis.set_yticks(
            [0.1, 1, 10, 100, 1000, 10000], ["0.1", "1", "10", "100", "1,000", "10,000"]
        )
        axis.set(title={"upgrad": "UPGrad", "dualproj": "DualProj"}[method], xlabel="objectives")
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("milliseconds")
    figure.axes[0].legend(frameon=False)
    return figure


TABLES: dict[str, Callable[[], str]] = {
    each.__name__: each
    for each in (examples, tasks, memory, models, methods, weights, processes, language, tiny)
}
_PLACE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def page() -> str:
    """The page with its tables taken from the files."""
    text = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    return _PLACE.sub(lambda found: found[1] + TABLES[found[2]]() + "\n\n" + found[3], text)


def readme() -> str:
    """The README with the range of the first table, in whole plain steps."""
    found = [row for case, row in lines("engines", "case").items() if case in EXAMPLES]
    columns = [
        [float(str(row["ours"])) for row in found],
        [value for row in found if (value := theirs(row)) is not None],
    ]
    cells = [f"[{min(x):.0f} to {max(x):.0f}](docs/benchmarks.md)" for x in columns]
    loops = [float(str(row["loop"])) for row in found if row.get("loop")]
    cells += ["-", f"[{min(loops):.0f} to {max(loops):.0f}](docs/benchmarks.md)" if loops else "-"]
    name = "| one objective per example, plain steps on a CPU |"
    text = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    return re.sub(rf"{re.escape(name)}.*", f"{name} {' | '.join(cells)} |", text)


def measure() -> None:
    """Take engines.json and weights.json again; their other lines are gone."""
    quick = [case for case in (*EXAMPLES, *TASKS) if case not in SLOW]
    with TemporaryDirectory() as name:
        folder = Path(name)
        found = []
        for cases, skips in (
            ([case for case in quick if case in EXAMPLES], ["autojac"]),  # always slower there
            ([case for case in quick if case in TASKS], []),
        ):
            engines(cases=cases, skips=skips, busy=True, seconds=5.0, output=folder)
            found.append(Report.read(folder / "engines.json"))
        rows = [row for part in found for row in part.rows]
        replace(found[0], rows=rows).write(folder)
        weights_of(
            sizes=(2, 4, 8, 32, 64, 128, 256), methods=("upgrad", "dualproj"),
            families=("gaussian", "conflicting", "network", "run_start", "run_early", "run_late"),
            repeats=10, busy=True, output=str(folder),
        )  # fmt: skip
        for each in ("engines.json", "weights.json"):
            copy(folder / each, DOCS / "benchmarks" / each)


def main() -> None:
    parser = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--measure", action="store_true", help="take steps and weights again")
    if parser.parse_args().measure:
        begin = time.perf_counter()
        measure()
        print(f"Measured in {(time.perf_counter() - begin) / 60:.1f} minutes.")
    for draw in (draw_steps, draw_growth, draw_models, draw_weights):
        path = FIGURES / draw.__name__.replace("draw", "benchmarks")
        draw().savefig(path.with_suffix(".svg"), transparent=True, metadata={"Date": None})
    (DOCS / "benchmarks.md").write_text(page(), encoding="utf-8")
    (DOCS.parent / "README.md").write_text(readme(), encoding="utf-8")


if __name__ == "__main__":
    main()
