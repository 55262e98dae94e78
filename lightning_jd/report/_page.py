"""The page: verdict first, then the charts, each with a line on how to read it."""

from __future__ import annotations

from html import escape

from lightning_jd.report._run import Run
from lightning_jd.report._svg import heat_map, line_chart
from lightning_jd.report._verdict import Finding, verdict

_MOST_LINES = 12
_SHARE = (0.0, 1.0)
_STYLE = """
:root { --ink: #1d2433; --soft: #667085; --line: #e4e7ec; --card: #fff; --page: #f6f7f9;
        --calm: #12805c; --notable: #b35c00; --strong: #b42318; --unknown: #667085; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9f0; --soft: #98a2b3; --line: #343b49; --card: #1b212c; --page: #12161d;
          --calm: #4fc69b; --notable: #f5a94b; --strong: #f97066; --unknown: #98a2b3; } }
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
.calm { --level: var(--calm); } .notable { --level: var(--notable); }
.strong { --level: var(--strong); } .unknown { --level: var(--unknown); }
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


def page(run: Run, title: str) -> str:
    """The report as one self-contained HTML page."""
    method = escape(run.aggregator or "an unnamed method")
    charts = "".join(_charts(run))
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>"
        f"<h1>{escape(title)}</h1>"
        f'<p class="soft">Jacobian descent with {method}. Bands are one standard deviation.</p>'
        f'<section class="grid verdicts">{"".join(map(_card, verdict(run)))}</section>'
        f'<section class="grid">{charts}</section></main></body></html>\n'
    )


def _card(finding: Finding) -> str:
    return (
        f'<article class="card verdict {finding.level}"><h2>{escape(finding.question)}</h2>'
        f"<p>{escape(finding.answer)}</p>"
        f"<details><summary>the rule</summary>{escape(finding.rule)}</details></article>"
    )


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


def _chart(title: str, hint: str, drawing: str) -> str:
    if not drawing:
        return ""
    return (
        f'<article class="card"><h2>{escape(title)}</h2>'
        f'<p class="soft">{escape(hint)}</p>{drawing}</article>'
    )
