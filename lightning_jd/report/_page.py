"""The page: verdict first, then the charts, each with a line on how to read it."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path

from lightning_jd.report._promise import suffering
from lightning_jd.report._run import Run
from lightning_jd.report._svg import bar_chart, heat_map, line_chart
from lightning_jd.report._verdict import Finding, verdict

_MOST_LINES = 12
_SHARE = (0.0, 1.0)
_STYLE = """
:root { --ink: #1d2433; --soft: #667085; --line: #e4e7ec; --card: #fff; --page: #f6f7f9;
        --fact: #98a2b3; --act: #b42318; --unknown: #d0d5dd; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9f0; --soft: #98a2b3; --line: #343b49; --card: #1b212c; --page: #12161d;
          --fact: #667085; --act: #f97066; --unknown: #343b49; } }
* { box-sizing: border-box; }
body { margin: 0; padding: 28px; background: var(--page); color: var(--ink);
       font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1160px; margin: auto; }
h1 { font-size: 26px; margin: 0 0 2px; } h2 { font-size: 16px; margin: 0 0 2px; }
p { margin: 0 0 10px; } .soft { color: var(--soft); font-size: 13.5px; }
.grid { display: grid; gap: 16px;
        grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
        padding: 16px 18px; min-width: 0; overflow-wrap: anywhere; }
.verdict { border-left: 5px solid var(--level); margin: 0; } .verdicts { margin: 18px 0; }
.fact { --level: var(--fact); } .act { --level: var(--act); } .unknown { --level: var(--unknown); }
.act h2, .remedy { color: var(--act); } .remedy { font-weight: 600; }
.remedy a { color: inherit; font-weight: 400; }
.hover { fill: transparent; } .hover:hover { fill: var(--soft); fill-opacity: 0.12; }
table { border-collapse: collapse; font-size: 13.5px; width: 100%; margin-top: 6px; }
th, td { text-align: left; padding: 3px 10px 3px 0; vertical-align: top;
         border-top: 1px solid var(--line); }
th { font-weight: 500; color: var(--soft); width: 8.5em; }
.examples th, .examples td { width: auto; text-align: right; font-variant-numeric: tabular-nums; }
.run h2.name { font-size: 20px; margin: 6px 0 8px; }
.runs { align-items: start; margin-bottom: 16px; }
details { color: var(--soft); font-size: 13px; } summary { cursor: pointer; }
svg { width: 100%; height: auto; display: block; }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
svg .name { fill: var(--ink); font-size: 12px; }
svg line.grid { stroke: var(--line); } .line { fill: none; stroke-width: 2; stroke-linecap: round;
  stroke-linejoin: round; } .band { opacity: 0.16; } .cell { stroke: var(--card); }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; padding: 0; margin: 4px 0 0 8px;
          list-style: none; font-size: 13px; }
.legend i { display: inline-block; width: 12px; height: 3px; margin-right: 6px;
            vertical-align: middle; }
"""


def page(run: Run, title: str, other: Run | None = None, other_title: str = "") -> str:
    """The report as one self-contained HTML page.

    Args:
        run: The run.
        title: Its heading.
        other: Another run, to be shown beside it.
        other_title: The heading of the other run.
    """
    if other is None:
        return _whole(title, _intro(run) + _findings(run) + _grid(_charts(run)) + _about(run))
    columns = [
        f'<section class="run"><h2 class="name">{escape(name)}</h2>{_intro(each)}'
        f"{_findings(each)}{_about(each)}</section>"
        for name, each in ((title, run), (other_title, other))
    ]
    charts = zip(_charts(run), _charts(other), strict=True)
    pairs = [drawing or _BLANK for pair in charts if any(pair) for drawing in pair]
    top = f'<section class="grid runs">{"".join(columns)}</section>'
    return _whole(f"{title} and {other_title}", top + _grid(pairs))


_BLANK = '<article class="card"><p class="soft">Not recorded.</p></article>'


def _whole(title: str, content: str) -> str:
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>"
        f"<h1>{escape(title)}</h1>{content}</main></body></html>\n"
    )


def _intro(run: Run) -> str:
    method = escape(run.aggregator or "an unnamed method")
    return (
        f'<p class="soft">Jacobian descent with {method}. Bands are one standard deviation; dashed '
        "lines coincide with another one. Point at a chart for its values.</p>"
    )


def _findings(run: Run) -> str:
    ordered = sorted(verdict(run), key=lambda finding: finding.level != "act")
    return f'<section class="grid verdicts">{"".join(map(_card, ordered))}</section>'


def _grid(charts: Iterable[str]) -> str:
    return f'<section class="grid">{"".join(charts)}</section>'


def _about(run: Run) -> str:
    if not run.about:
        return ""
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>"
        for name, text in run.about.items()
    )
    return (
        '<article class="card" style="margin-top:16px"><h2>What was run</h2>'
        f"<table>{rows}</table></article>"
    )


def _card(finding: Finding) -> str:
    remedy = ""
    if finding.remedy:
        remedy = (
            f'<p class="remedy">{escape(finding.remedy)} '
            f'<span class="soft">More: {_linked(finding.page)}</span></p>'
        )
    return (
        f'<article class="card verdict {finding.level}"><h2>{escape(finding.question)}</h2>'
        f"<p>{escape(finding.answer)}</p>{remedy}"
        f"<details><summary>the rule</summary>{escape(finding.rule)}</details></article>"
    )


def _linked(place: str) -> str:
    """File and section of the documentation, with a link where the repository is installed."""
    name, _, section = place.partition(": ")
    file = Path(__file__).parents[2] / name
    text = f"{escape(name)}, “{escape(section)}”"
    return f'<a href="{escape(file.as_uri())}">{text}</a>' if file.is_file() else text


def _charts(run: Run) -> list[str]:
    return [
        _per_task(run, "loss/", "Loss of each objective", "Down is better.")
        or _lines(run, "Mean loss", "Down is better.", mean_loss="mean loss"),
        _lines(
            run,
            "Similarity to the mean update",
            "1: the update has the direction of plain training. Lower: conflict and imbalance "
            "change it.",
            _SHARE,
            similarity_to_mean="cosine",
        ),
        _lines(
            run,
            "Objectives that get worse",
            "Fraction of the objectives that conflict with the update, and with the mean update, "
            "which is plain training.",
            _SHARE,
            violation_share="this run",
            mean_violation_share="the mean instead",
        ),
        _chart(
            "Who gets worse",
            "Share of the recorded steps in which the update made a task worse, to first order.",
            bar_chart(dict(list(suffering(run).items())[:_MOST_LINES])),
        ),
        _lines(
            run,
            "Worst angle with a gradient",
            "Smallest cosine between the update and a gradient. Below zero, an objective gets "
            "worse.",
            (-1.0, 1.0),
            violation_worst_cosine="this run",
            mean_violation_worst_cosine="the mean instead",
        ),
        _per_task(
            run, "weight/", "Weight of each objective", "The weight of each gradient in the update."
        )
        or _lines(
            run,
            "Evenness of the weights",
            "1: all objectives have equal weight. 0: one has all the weight.",
            _SHARE,
            weight_entropy="entropy / log m",
        ),
        _cosines(run),
        _lines(
            run,
            "Pairs in conflict",
            "Fraction of the pairs of gradients with a negative cosine.",
            _SHARE,
            conflict_rate="pairs",
        ),
        _per_task(
            run, "norm/", "Gradient norm of each objective", "Long gradients dominate the mean."
        )
        or _lines(
            run,
            "Imbalance of the gradient norms",
            "1: all gradients are equally long.",
            norm_imbalance="factor",
        ),
        _lines(
            run,
            "Distance to weak stationarity",
            "0: no direction improves all objectives.",
            _SHARE,
            stationarity_distance="relative distance",
        ),
        _examples(run),
        _lines(
            run,
            "Time",
            "Fractions of a step: from the losses to their gradients (including the backward "
            "pass), and computing the weights.",
            _SHARE,
            time_share="losses to gradients",
            weights_time_share="weights",
        ),
    ]


def _lines(
    run: Run, title: str, hint: str, limits: tuple[float, float] | None = None, /, **names: str
) -> str:
    lines = [(label, run.tracks[name]) for name, label in names.items() if name in run.tracks]
    return _chart(title, hint, line_chart(lines, limits=limits))


def _per_task(run: Run, prefix: str, title: str, hint: str) -> str:
    tracks = run.members(prefix)
    if len(tracks) > _MOST_LINES:
        hint += f" The first {_MOST_LINES} of {len(tracks)}."
    return _chart(title, hint, line_chart(list(tracks.items())[:_MOST_LINES]))


def _cosines(run: Run) -> str:
    if run.cosines is None:
        return ""
    hint = "Mean cosine of each pair of gradients. Red pairs conflict, blue ones agree."
    return _chart("Conflict between objectives", hint, heat_map(run.cosines))


def _examples(run: Run) -> str:
    columns = {"index": "index", "worse": "made worse", "alignment": "alignment", "norm": "norm"}
    columns |= {"loss": "loss"}
    head = "".join(f"<th>{title}</th>" for title in columns.values())
    rows = "".join(
        f"<tr>{''.join(f'<td>{_number(name, row.get(name))}</td>' for name in columns)}</tr>"
        for row in run.examples
    )
    hint = (
        "Of the last epoch: the examples that updates made worse in the largest share of their "
        "steps, the least aligned with the mean gradient of their batch first."
    )
    return _chart(
        "Examples in conflict", hint, rows and f'<table class="examples">{head}{rows}</table>'
    )


def _number(name: str, value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f}" if name == "index" else f"{value:.3g}"


def _chart(title: str, hint: str, drawing: str) -> str:
    if not drawing:
        return ""
    return (
        f'<article class="card"><h2>{escape(title)}</h2>'
        f'<p class="soft">{escape(hint)}</p>{drawing}</article>'
    )
