"""A run in five sentences: facts, and what to act on, by rules that are stated beside them."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from lightning_jd.report._promise import HARM, PLAIN, SAME, WORSE, problems, suffering
from lightning_jd.report._run import Run

Level = Literal["fact", "act", "unknown"]
_MISSING = "The run did not record this."


class Finding(NamedTuple):
    """One finding of the report.

    Attributes:
        question: The question.
        level: ``"act"`` if something should be done, ``"fact"`` if not.
        answer: The answer, with its numbers.
        rule: How the numbers determine answer and level.
        remedy: What to do, in one sentence, where one should act.
        page: The page of the documentation on it, and its section.
    """

    question: str
    level: Level
    answer: str
    rule: str
    remedy: str = ""
    page: str = ""


def verdict(run: Run) -> list[Finding]:
    """The findings: conflict, imbalance, who suffers, effect on the update, cost, batch size."""
    found = [_conflict(run), _imbalance(run), _harm(run), _change(run), _cost(run)]
    return found if math.isnan(run.mean("gradient_noise")) else [*found, _batch(run)]


def _conflict(run: Run) -> Finding:
    question = "Is there conflict?"
    rule = (
        "Strong if the mean of the gradients would make at least 10% of the objectives worse, on "
        "average over the steps; some if at least 1%, or if at least 5% of the pairs of gradients "
        "conflict (cosine below -0.001); otherwise little."
    )
    harmed, pairs = run.mean("mean_violation_share"), run.mean("conflict_rate")
    if math.isnan(harmed) or math.isnan(pairs):
        return Finding(question, "unknown", _MISSING, rule)
    facts = (
        f"{_percent(pairs)} of the pairs of gradients conflict, and the mean update would make "
        f"{_percent(harmed)} of the objectives worse."
    )
    if harmed >= 0.1:
        return Finding(question, "fact", f"Yes, strong conflict: {facts}", rule)
    if harmed >= 0.01 or pairs >= 0.05:
        return Finding(question, "fact", f"Yes, some: {facts}", rule)
    return Finding(question, "fact", f"Hardly: {facts}", rule)


def _imbalance(run: Run) -> Finding:
    question = "Are the gradients imbalanced?"
    rule = (
        "The factor is the geometric standard deviation of the gradient norms. Below 1.5 they are "
        "balanced, up to 3 imbalanced, above 3 strongly imbalanced."
    )
    factor = run.mean("norm_imbalance")
    if math.isnan(factor):
        return Finding(question, "unknown", _MISSING, rule)
    facts = f"norms typically differ from their geometric mean by a factor of {factor:.2g}"
    norms = {name: track.mean() for name, track in run.members("norm/").items()}
    if len(norms) > 1:
        facts += f"; the largest belong to “{max(norms, key=lambda name: norms[name])}”"
    if factor >= 3:
        return Finding(question, "fact", f"Yes, strongly: {facts}.", rule)
    if factor >= 1.5:
        return Finding(question, "fact", f"Yes: {facts}.", rule)
    return Finding(question, "fact", f"No: {facts}.", rule)


def _harm(run: Run) -> Finding:
    question = "Who gets worse?"
    rule = (
        "An objective gets worse, to first order, if the cosine of its gradient with the update is "
        f"below -0.001. One should act if a task gets worse in more than {_percent(WORSE)} of the "
        "recorded steps although the method claims to protect it."
    )
    harmed, before = run.mean("violation_share"), run.mean("mean_violation_share")
    if math.isnan(harmed):
        return Finding(question, "unknown", _MISSING, rule)
    answer = f"Per step, {_percent(harmed)} of the objectives"
    answer += "." if math.isnan(before) else f"; with the mean it would be {_percent(before)}."
    if worse := suffering(run):
        name, share = next(iter(worse.items()))
        answer += f" Most often {name}, in {_percent(share)} of the steps." if share else ""
    if run.method.get("protects") and (found := problems(run)):
        problem = found[0]
        text = f"{problem.what} {problem.why}"
        return Finding(question, "act", text, rule, problem.remedy, problem.page)
    return Finding(question, "fact", answer, rule)


def _change(run: Run) -> Finding:
    question = "Does the method change the update?"
    rule = (
        "The mean cosine between the update and the mean of the gradients: hardly from 0.99, "
        f"somewhat from 0.9, clearly below. One should act if it is above {SAME} while at least "
        f"{_percent(HARM)} of the objectives get worse."
    )
    similarity, before = run.mean("similarity_to_mean"), run.mean("mean_violation_share")
    if math.isnan(similarity):
        return Finding(question, "unknown", _MISSING, rule)
    if run.aggregator in PLAIN:
        advice = " Try 'upgrad' to resolve the conflict." if before >= HARM else ""
        return Finding(question, "fact", f"No: this is plain training.{advice}", rule)
    found = [] if run.method.get("protects") else problems(run)
    if found:
        text = f"{found[0].what} {found[0].why}"
        return Finding(question, "act", text, rule, found[0].remedy, found[0].page)
    amount = "Hardly" if similarity >= 0.99 else "Somewhat" if similarity >= 0.9 else "Clearly"
    answer = f"{amount}: its cosine to the mean update is {similarity:.3f}."
    if similarity >= 0.99 and before < HARM:
        answer += " There is little conflict to resolve; 'mean' costs less."
    return Finding(question, "fact", answer, rule)


def _cost(run: Run) -> Finding:
    question = "What does it cost?"
    rule = (
        "A few steps were measured on the host, each beside the backward pass of plain training on "
        "the same batch; the factor is the time of a step relative to a plain step. Not measured "
        "on accelerators and on several processes. The share of the weights is that of the whole "
        "step."
    )
    cost, share = run.mean("cost"), run.mean("time_share")
    weights = run.mean("weights_time_share")
    parts = []
    if not math.isnan(cost):
        parts.append(f"A step takes {cost:.2f} times as long as a plain step.")
    if not math.isnan(share):
        parts.append(f"Computing the gradients takes {_percent(share)} of a step.")
    if not math.isnan(weights):
        parts.append(f"Computing the weights takes {_percent(weights)}.")
    level: Level = "fact" if parts else "unknown"
    return Finding(question, level, " ".join(parts) or _MISSING, rule)


def _batch(run: Run) -> Finding:
    question = "Would a larger batch pay?"
    rule = (
        "With one objective per example: the variance of the mean gradient of a batch, relative to "
        "the squared length of the true gradient; both are unbiased estimates, averaged over the "
        "recorded steps. Above 2, a larger batch pays; below 0.5, a smaller one would do. (At 1, "
        "the batch is the gradient noise scale.)"
    )
    noise, signal = run.mean("gradient_noise"), run.mean("gradient_signal")
    if signal <= 0:
        return Finding(question, "fact", "Yes: the gradient is lost in its noise.", rule)
    ratio = noise / signal
    facts = f"the variance of the mean gradient is {ratio:.2g} times its squared length"
    if ratio > 2:
        return Finding(question, "fact", f"Yes: {facts}.", rule)
    if ratio < 0.5:
        return Finding(question, "fact", f"No, a smaller one would do: {facts}.", rule)
    return Finding(question, "fact", f"Hardly: {facts}.", rule)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%" if 0 < share < 0.1 else f"{100 * share:.0f}%"
