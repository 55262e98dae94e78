"""Promises that a run does not keep: which task suffers, why, and what to do."""

from __future__ import annotations

import math
from typing import NamedTuple

from lightning_jd.report._run import Run

WORSE = 0.1  # share of the steps in which a protected task may get worse before it is a problem
SAME = 0.999  # cosine from which on the update is that of the mean
HARM = 0.01  # share of the objectives that get worse, from which on there is something to protect
NOISE = 1e-6  # a gradient that is so much shorter than the longest one counts as rounding noise
#: They are the plain mean or sum on purpose.
PLAIN = ("mean", "sum", "equal", "constant")


class Problem(NamedTuple):
    """A promise that is not kept.

    Attributes:
        what: Who suffers, and how much.
        why: The reason.
        remedy: What to do, in one sentence.
        page: The page of the documentation that explains it, and its section.
    """

    what: str
    why: str
    remedy: str
    page: str

    def text(self) -> str:
        """All of it, for a log."""
        return f"{self.what} {self.why} {self.remedy} See {self.page}."


def problems(run: Run) -> list[Problem]:
    """The promises that a run does not keep, the most concrete first.

    - A method that claims to protect every objective makes a task worse in more than 10 % of the
      steps, or the gradient of a task is below the threshold of ``reg``.
    - The update is that of the mean (cosine above 0.999) although another method was chosen, and
      at least 1 % of the objectives get worse.
    """
    found = _unprotected(run)
    return found or _same_as_mean(run)


def suffering(run: Run) -> dict[str, float]:
    """Task to the share of the recorded steps in which it got worse, the largest first."""
    shares = {name: track.mean() for name, track in run.members("worse/").items()}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _unprotected(run: Run) -> list[Problem]:
    if not run.method.get("protects"):
        return []
    worse, norms = suffering(run), _norms(run)
    total = sum(norm**2 for norm in norms.values())
    reg = float(run.method.get("reg") or 0.0)
    by_trace = run.method.get("relative_to") == "trace"
    below = [name for name, norm in norms.items() if by_trace and norm**2 < reg * total]
    suffer = [name for name, share in worse.items() if share > WORSE]
    names = list(dict.fromkeys([*suffer, *below]))
    if not names:
        return []
    listed = ", ".join(f"{name!r} ({percent(worse.get(name, math.nan))})" for name in names[:5])
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    what = (
        f"{run.aggregator} claims to protect every task, but does not protect {listed}{more}: in "
        "brackets the share of the steps that made the task worse, to first order."
    )
    shortest = min((norms[name] for name in names if name in norms), default=math.nan)
    longest = max(norms.values(), default=math.nan)
    if below:
        why = (
            f"The squared norm of its gradient is below the threshold of reg={reg:g}, which is "
            "relative to the trace."
        )
        remedy = "Set relative_to='row' (the default for tasks), or lower `reg`."
    elif shortest < NOISE * longest:
        why = "Its gradient is a million times shorter than the longest, like rounding noise."
        remedy = "Multiply its loss by a constant, or wrap the method in 'normalized'."
    else:
        why = f"reg={reg:g} concedes that much." if reg else "The weights may be out of date."
        remedy = "Lower `reg`."
    return [Problem(what, why, remedy, "docs/method.md: What regularisation concedes")]


def _same_as_mean(run: Run) -> list[Problem]:
    similarity = run.mean("similarity_to_mean")
    harmed, instead = run.mean("violation_share"), run.mean("mean_violation_share")
    is_same = similarity > SAME and harmed >= HARM and instead >= HARM
    if not is_same or run.aggregator is None or run.aggregator in PLAIN:
        return []
    what = (
        f"The update of {run.aggregator} is that of the mean (cosine {similarity:.4f}), and makes "
        f"{percent(harmed)} of the objectives worse, to first order."
    )
    norms = _norms(run)
    if norms and max(norms.values()) > 10 * sorted(norms.values())[-2 if len(norms) > 1 else -1]:
        loudest = max(norms, key=lambda name: norms[name])
        why = f"The gradient of {loudest!r} is more than ten times as long as any other."
        remedy = "Use a method that keeps small tasks ('upgrad', 'config', 'normalized')."
    elif norms:
        why = "Its weights are nearly equal."
        remedy = "Use a method that keeps small tasks ('upgrad', 'config', 'normalized')."
    else:
        why = "The gradients of most examples are below the threshold of `reg`."
        remedy = "Lower `reg`, or use 'mean', which costs less."
    return [Problem(what, why, remedy, "docs/aggregators/index.md: Properties")]


def _norms(run: Run) -> dict[str, float]:
    return {name: track.mean() for name, track in run.members("norm/").items()}


def percent(share: float) -> str:
    """A share in words."""
    if math.isnan(share):
        return "unknown"
    return f"{100 * share:.1f}%" if 0 < share < 0.1 else f"{100 * share:.0f}%"
