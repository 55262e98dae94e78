"""Write docs/paper.md from saved results; nothing in its tables is typed by hand.

    PYTHONPATH=. python docs/paper.py                   # the page again, from docs/paper/*.json
    PYTHONPATH=. python docs/paper.py --results DIR     # first take over the results of the commands from DIR

DIR holds the output folders iwrm-<dataset>, trajectories and speed, and of the further studies
iwrm-<dataset>-b4, -b16, -b64 and -adam. The JSON files have more columns than the page has room for.
"""

import argparse
import csv
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from examples.lab.figure import new_figure, save_figure
from examples.lab.report import Report
from examples.lab.studies._settings import PAPER_AGGREGATORS, settings_of
from examples.lab.work.paper import ARCHITECTURES, EPOCHS

DOCS = Path(__file__).parent
TITLES = {"cifar10": "CIFAR-10", "mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
METHODS = [setting.label for setting in settings_of(PAPER_AGGREGATORS, (1e-4, 1e-3))]
MEAN, UPGRAD = "Mean (SGD)", ("UPGrad, reg 1e-4", "UPGrad, reg 1e-3")
FUNCTIONS = {"ewq": "Element-wise quadratic", "cqf": "Convex quadratic form"}
#: The further studies: the ending of a folder to what it is called, and the option of the command.
FURTHER = {
    "b4": ("SGD, 4", "--batch-size 4"),
    "b16": ("SGD, 16", "--batch-size 16"),
    "b64": ("SGD, 64", "--batch-size 64"),
    "adam": ("Adam, 32", "--optimizer adam"),
}

HEAD = """# The paper, reproduced

Quinton and Rey, *Jacobian Descent for Multi-Objective Optimization*
([arXiv:2406.16232](https://arxiv.org/abs/2406.16232)), report that training with one objective
per image, and UPGrad instead of the mean of the gradients, makes the training loss fall faster.
This page repeats their experiments with this package, on real images. It is written by
`docs/paper.py` from the files in `docs/paper`, which the commands below wrote.

```bash
pip install torch==2.13.0 -e ".[lab]"
python -m examples.lab iwrm --dataset mnist --data DIR            # also cifar10, fashion-mnist, svhn, ...
python -m examples.lab trajectories
python -m examples.lab speed
```

`DIR` holds the original dataset files; the command lists missing ones with their URL. All
commands can be stopped and started again. `iwrm` also takes `--budget paper` (22 + 50 learning
rates for each method and seed), `--batch-size` and `--optimizer adam`.
"""

DIFFERENCES = """## What differs from the paper

- **Learning rates.** The paper sweeps 22 + 50 rates for each method and each of 8 seeds. Here a
  walk by factors of 10^(1/3), with one refinement by 10^(1/6), chooses the rate with seed 1,
  and the other seeds keep it; a seed with 1.5 times the area of seed 1 takes smaller rates as
  long as they help, and where seed 1 has diverged half a step above, the others try larger ones
  as long as they help. Rates are therefore right to about 20 %; a finer sweep lowers all areas a
  little.
- **Seeds.** 3 instead of 8.
- **Regularisation.** The paper's experiments use UPGrad and DualProj with 1e-4; UPGrad is shown
  with 1e-3 too.
- **Nash-MTL** is the definition in the paper, not the official code, which the paper suspects
  of causing its "disappointing results". Likewise CAGrad, MGDA, IMTL-G and Aligned-MTL are
  solved exactly.
- **CIFAR-10.** The subsets were drawn from, and the normalisation computed over, the first of
  its five training batches (10,000 images).
- **Trajectories.** The paper finds that CAGrad also stops on the axes of the element-wise
  quadratic. By its definition with c < 1 it cannot: an update d in the ball of radius c |g|
  around the mean g has ⟨d, g⟩ ≥ (1 - c) |g|², so it moves wherever the mean moves. (A threshold
  below which an implementation returns zero would explain it; that is a guess.) IMTL-G, which
  the paper does not name there, does stop by its definition: it moves both coordinates by the
  same amount, so that one arrives first. TorchJD's, in single precision, went on.
- **Speed** was measured on a CPU, the paper's on a GPU: only the ratios to SGD can be compared.
- **SVHN, EuroSAT and Kuzushiji-MNIST** have loaders, tested on small files of their official
  formats, but were not available for this page.
"""


def take_over(results: Path) -> None:
    """Copy what the page needs: reports and figures."""
    (DOCS / "paper").mkdir(exist_ok=True)
    folders = [f"iwrm-{name}" for name in TITLES]
    for folder in [*folders, "trajectories", "speed"]:
        stem = folder.partition("-")[0]
        source = results / folder / f"{stem}.json"
        if source.exists():
            shutil.copy(source, DOCS / "paper" / f"{folder}.json")
    for name in TITLES:
        if (figure := results / f"iwrm-{name}" / "iwrm.png").exists():
            shutil.copy(figure, DOCS / "figures" / f"paper_{name}.png")
    for name in TITLES:
        for what in FURTHER:
            if (source := results / f"iwrm-{name}-{what}" / "iwrm.json").exists():
                shutil.copy(source, DOCS / "paper" / f"iwrm-{name}-{what}.json")
    draw_further(results)
    for name in ("ewq", "cqf"):
        if (figure := results / "trajectories" / f"{name}.png").exists():
            shutil.copy(figure, DOCS / "figures" / f"paper_{name}.png")


def page() -> str:
    """The whole page, from the reports in docs/paper."""
    reports = {name: report(f"iwrm-{name}") for name in TITLES}
    parts = [HEAD, summary(reports)]
    timed = report("speed")
    parts += [instance_wise(name, found, timed) for name, found in reports.items() if found]
    parts.append(further())
    if (found := report("trajectories")) is not None:
        parts.append(trajectories(found))
    if timed is not None:
        parts.append(speed(timed))
    parts += [DIFFERENCES, machine(next(found for found in reports.values() if found))]
    return "\n".join(parts)


def report(name: str) -> Report | None:
    path = DOCS / "paper" / f"{name}.json"
    return Report.read(path) if path.exists() else None


def table(heads: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """A table of Markdown, narrow enough for the page."""
    body = [f"| {' | '.join(map(str, line))} |" for line in lines]
    return "\n".join([f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *body])


def number(value: float | None) -> str:
    """Three digits."""
    return "-" if value is None else f"{value + 0.0:.3g}"


def rates(row: dict[str, str]) -> str:
    """The learning rates of the seeds, or the only one."""
    return ", ".join(dict.fromkeys(row["lr"].split(", ")))


def areas(found: Report) -> dict[str, float]:
    return {row["method"]: row["area"] for row in found.rows if row["area"] is not None}


def summary(reports: dict[str, Report | None]) -> str:
    lines = ["| dataset | Mean (SGD) | UPGrad, reg 1e-4 | UPGrad, reg 1e-3 | UPGrad below Mean |"]
    lines.append("|---|---|---|---|---|")
    for name, found in reports.items():
        if found is None:
            continue
        by_method = {row["method"]: row for row in found.rows}
        cells = [shown(by_method[method]) for method in (MEAN, *UPGRAD)]
        known = areas(found)
        verdict = all(known[method] < known[MEAN] for method in UPGRAD)
        lines.append(f"| {TITLES[name]} | {' | '.join(cells)} | {'yes' if verdict else 'no'} |")
    text = "Area under the training loss, mean over seeds ± standard error, at the best rate:"
    return f"## In short\n\n{text}\n\n" + "\n".join(lines) + "\n"


def shown(row: dict[str, float]) -> str:
    return f"{row['area']:.3f} ± {row['error']:.3f}"


def instance_wise(name: str, found: Report, timed: Report | None) -> str:
    known = areas(found)
    better = [method for method in known if known[method] < known[MEAN] and method != MEAN]
    worse = [method for method in known if known[method] > known[MEAN]]
    tried = [row["method"] for row in found.rows]
    untried = [method for method in METHODS if method not in tried]
    text = [
        f"## {TITLES[name]}",
        f"![Loss and similarity to SGD on {TITLES[name]}](figures/paper_{name}.png)",
        table(
            ["method", "area", "/ Mean's", "final loss", "similarity to SGD", "learning rates"],
            [instance_wise_line(row) for row in found.rows],
        ),
        # What the page does not show is not explained.
        *(note.partition(" Steps: ")[0] for note in found.notes),
        f"Better than Mean, best first: {'; '.join(better) or 'none'}. "
        f"Worse, best first: {'; '.join(worse) or 'none'}.",
    ]
    if timed is not None:
        upgrad = next(row for row in timed.rows if row["method"] == "UPGrad")
        steps = sum(row["steps"] for row in found.rows)
        minutes = steps * upgrad[f"{ARCHITECTURES[name]}_seconds"] / 32 / 60 / 2
        text.append(
            f"All runs together took {steps:,} steps: at the speed below, {minutes:.0f} minutes of "
            "two cores."
        )
    if untried:
        text.append(f"Not trained for this page: {'; '.join(untried)}.")
    return "\n\n".join(text) + "\n"


def instance_wise_line(row: dict[str, object]) -> list[object]:
    diverged = f" ({row['not_finished']} diverged)" if row["not_finished"] else ""
    cells = [row["method"], shown(row) + diverged if row["area"] is not None else "diverged"]
    cells += [number(row.get(key)) for key in ("ratio", "final_loss", "similarity")]
    return [*cells, rates(row)]


def further() -> str:
    """Batch sizes and Adam: a table of all datasets, and what follows."""
    text = ["## Batch sizes and Adam"]
    found = {(name, what): report(f"iwrm-{name}-{what}") for name in TITLES for what in FURTHER}
    known = {key: result for key, result in found.items() if result is not None}
    if not known:
        return "\n\n".join([*text, "Not trained for this page."]) + "\n"
    options = ", ".join(f"`{option}`" for _, option in FURTHER.values())
    text += [
        "The paper's two further studies, smaller than those above: Mean and UPGrad (reg 1e-4), 3 "
        "seeds, few images and epochs. The command is `python -m examples.lab iwrm --dataset NAME --data DIR "
        "--aggregators '[mean, upgrad]' --regs '[1e-4]' --size IMAGES --epochs EPOCHS` with one of "
        f"{options}. The search is the same for both methods; with Adam it begins at 1e-3. "
        "Areas depend on images, epochs and steps: compare the two methods of a line, not lines.",
        "![Training loss for several batch sizes and with Adam](figures/paper_further.png)",
    ]
    heads = ["dataset", "optimizer, batch", "images", "epochs", "Mean", "UPGrad", "ratio", "rates"]
    lines, verdicts = (
        [],
        {word: [] for word in ("smaller", "larger", "not significantly different")},
    )
    for (name, what), result in known.items():
        mean, upgrad = (
            next(row for row in result.rows if row["method"].startswith(method))
            for method in ("Mean", "UPGrad")
        )
        cells = [TITLES[name], FURTHER[what][0], *size_of(result), shown(mean), shown(upgrad)]
        ratio = upgrad["area"] / mean["area"]
        lines.append([*cells, f"{ratio:.2f}", f"{rates(mean)}; {rates(upgrad)}"])
        verdicts[verdict(upgrad, mean)].append(f"{TITLES[name]} ({FURTHER[what][0]})")
    said = "; ".join(f"{word}: {', '.join(w) or 'none'}" for word, w in verdicts.items())
    text += [
        table(heads, lines),
        "Areas under the training loss, ratios of UPGrad's to Mean's, rates of Mean; of UPGrad.",
        f"UPGrad's area against Mean's (significant: a difference of two of its errors or more): {said}.",
    ]
    missing = [f"{TITLES[n]} ({FURTHER[w][0]})" for (n, w) in found if (n, w) not in known]
    if missing:
        text.append(f"Not trained for this page: {'; '.join(missing)}.")
    return "\n\n".join(text) + "\n"


def size_of(found: Report) -> list[str]:
    """How many images, and how many epochs, from the note of a report."""
    images, epochs = found.notes[0].partition(" of ")[2].partition(". ")[0].split(", ")
    return [images.removesuffix(" images"), epochs.removesuffix(" epochs")]


def verdict(a: dict[str, float], b: dict[str, float]) -> str:
    """Whether the areas of three seeds differ significantly."""
    difference, error = a["area"] - b["area"], (a["error"] ** 2 + b["error"] ** 2) ** 0.5
    if abs(difference) < 2 * error:
        return "not significantly different"
    return "smaller" if difference < 0 else "larger"


def draw_further(results: Path) -> None:
    """One panel per dataset and setting: the training losses of Mean and of UPGrad."""
    folders = {(n, w): results / f"iwrm-{n}-{w}" / "curves.csv" for n in TITLES for w in FURTHER}
    if not any(path.exists() for path in folders.values()):
        return
    title = "Training loss, mean and standard error over 3 seeds"
    figure = new_figure(11, 7.5, title)
    panels = figure.subplots(len(TITLES), len(FURTHER), sharex="row", sharey="row")
    keys: dict[str, object] = {}
    for axes, ((name, what), path) in zip(panels.flat, folders.items(), strict=True):
        called = FURTHER[what][0].replace(", ", " in batches of ")
        axes.set_title(f"{TITLES[name]}, {called}", fontsize="small")
        axes.set_xlabel("epoch", fontsize="small")
        if what == next(iter(FURTHER)):
            axes.set_ylabel("training loss", fontsize="small")
        if not path.exists():
            axes.text(0.5, 0.5, "not trained", ha="center", transform=axes.transAxes)
            continue
        with path.open(encoding="utf-8") as file:
            lines = [line for line in csv.DictReader(file) if line["quantity"] == "loss"]
        for method, colour in (("Mean", "black"), ("UPGrad", "red")):
            points = [
                [float(line[key]) for key in ("epoch", "mean", "standard error")]
                for line in lines
                if line["method"].startswith(method)
            ]
            x, y, error = zip(*points, strict=True)
            (keys[method],) = axes.plot(x, y, color=colour)
            low = [max(a - b, 1e-6) for a, b in zip(y, error, strict=True)]
            high = [a + b for a, b in zip(y, error, strict=True)]
            axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.set_yscale("log")
        axes.grid(alpha=0.3, which="both")
    figure.legend(keys.values(), keys.keys(), loc="outside lower center", ncols=2)
    save_figure(figure, DOCS / "figures" / "paper_further.png")


def trajectories(found: Report) -> str:
    stops = [row["method"] for row in found.rows if row["function"] == "ewq" and row["stopped"]]
    rising = [row["method"] for row in found.rows if row["worst_cosine"] < 0]
    parts = [
        "## Trajectories",
        "![Trajectories on the element-wise quadratic](figures/paper_ewq.png)",
        "![Trajectories on the convex quadratic form](figures/paper_cqf.png)",
        "On the element-wise quadratic these stop at weakly stationary points: "
        f"{'; '.join(stops)}. On the convex quadratic form these have steps that make a value "
        f"worse to first order: {'; '.join(rising)}.",
    ]
    heads = ["method", "final distances, by start", "reached", "stopped", "worst cosine", "rise"]
    for name, title in FUNCTIONS.items():
        rows = [row for row in found.rows if row["function"] == name]
        lines = [
            [row[key] for key in ("method", "distances", "reached", "stopped")]
            + [number(row[key]) for key in ("worst_cosine", "rise")]
            for row in rows
        ]
        parts += [f"{title}:", table(heads, lines)]
    parts += [
        "Reached: starts that come to the Pareto set. Stopped: starts that end off it, at a weakly "
        "stationary point. Worst cosine: of an update and a gradient.",
        *found.notes,
    ]
    return "\n\n".join(parts) + "\n"


def speed(found: Report) -> str:
    upgrad = next(row for row in found.rows if row["method"] == "UPGrad")
    names = list(dict.fromkeys(ARCHITECTURES.values()))
    ours = ", ".join(f"{upgrad[name]:.2f} ({name})" for name in names if name in upgrad)
    papers = ", ".join(f"{upgrad[f'{name}_paper']:.2f}" for name in names if name in upgrad)
    text = f"An epoch of UPGrad takes, in epochs of SGD: {ours}; in the paper: {papers}."
    keys = ("{}", "{}_torchjd", "{}_paper")
    lines = [
        [row["method"], *(" / ".join(number(row.get(k.format(n))) for k in keys) for n in names)]
        for row in found.rows
    ]
    heads = ["method", *names]
    notes = "\n\n".join(found.notes)
    return f"## Speed\n\n{text}\n\n{table(heads, lines)}\n\n{notes}\n"


def machine(found: Report) -> str:
    lines = [f"| {key} | {value} |" for key, value in found.environment.items()]
    epochs = ", ".join(f"{TITLES[name]} {EPOCHS[name]}" for name in TITLES)
    text = (
        f"Epochs as in the paper ({epochs}); `--budget small`; runs side by side in two processes "
        "of one thread."
    )
    head = "| what | version |\n|---|---|"
    return "\n\n".join(["## Budget and machine", text, "\n".join([head, *lines])]) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=None)
    if (results := parser.parse_args().results) is not None:
        take_over(results)
    (DOCS / "paper.md").write_text(page(), encoding="utf-8")
