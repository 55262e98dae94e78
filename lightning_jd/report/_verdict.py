"""A run in four sentences, by rules that are stated beside them."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from lightning_jd.report._run import Run

Level = Literal["calm", "notable", "strong", "unknown"]


class Finding(NamedTuple):
    """One finding of the report.

    Attributes:
        question: The question.
        level: The severity.
        answer: The answer, with its numbers.
        rule: How the numbers determine the level.
    """

    question: str
    level: Level
    answer: str
    rule: str


def verdict(run: Run) -> list[Finding]:
    """The findings: conflict, imbalance, effect on the update, and cost."""
    return [_conflict(run), _imbalance(run), _change(run), _cost(run)]


def _conflict(run: Run) -> Finding:
    question = "Is there conflict?"
    rule = (
        "Strong if the mean of the gradients would make at least 10% of the objectives worse, on "
        "average over the steps; some if at least 1%, or if at least 5% of the pairs of gradients "
        "conflict (cosine below -0.001); otherwise little."
    )
    harmed, pairs = run.mean("mean_violation_share"), run.mean("conflict_rate")
    if math.isnan(harmed) or math.isnan(pairs):
        return Finding(question, "unknown", "The run did not record this.", rule)
    facts = (
        f"{_percent(pairs)} of the pairs of gradients conflict, and the mean update would make "
        f"{_percent(harmed)} of the objectives worse."
    )
    if harmed >= 0.1:
        return Finding(question, "strong", f"Yes, strong conflict: {facts}", rule)
    if harmed >= 0.01 or pairs >= 0.05:
        return Finding(question, "notable", f"Yes, some: {facts}", rule)
    return Finding(question, "calm", f"Hardly: {facts}", rule)


def _imbalance(run: Run) -> Finding:
    question = "Are the gradients imbalanced?"
    rule = (
        "The factor is the geometric standard deviation of the gradient norms. Below 1.5 they are "
        "balanced, up to 3 imbalanced, above 3 strongly imbalanced."
    )
    factor = run.mean("norm_imbalance")
    if math.isnan(factor):
        return Finding(question, "unknown", "The run did not record this.", rule)
    facts = f"norms typically differ from their geometric mean by a factor of {factor:.2g}"
    norms = {name: track.mean() for name, track in run.members("norm/").items()}
    if len(norms) > 1:
        facts += f"; the largest belong to “{max(norms, key=lambda name: norms[name])}”"
    if factor >= 3:
        return Finding(question, "strong", f"Yes, strongly: {facts}.", rule)
    if factor >= 1.5:
        return Finding(question, "notable", f"Yes: {facts}.", rule)
    return Finding(question, "calm", f"No: {facts}.", rule)


def _change(run: Run) -> Finding:
    question = "Does the method change the update?"
    rule = (
        "The mean cosine between the update and the mean of the gradients: hardly from 0.99, "
        "somewhat from 0.9, clearly below."
    )
    similarity = run.mean("similarity_to_mean")
    harmed, before = run.mean("violation_share"), run.mean("mean_violation_share")
    method = run.aggregator or "the method"
    if math.isnan(similarity):
        return Finding(question, "unknown", "The run did not record this.", rule)
    if run.aggregator in ("mean", "sum"):  # ordinary training of the one, or of the other
        advice = " Try 'upgrad' to resolve the conflict." if before >= 0.01 else ""
        return Finding(question, "calm", f"No: this is plain training.{advice}", rule)
    facts = f"its cosine to the mean update is {similarity:.3f}."
    if not math.isnan(harmed):
        facts += f" With {method} {_percent(harmed)} of the objectives get worse to first order"
        facts += "." if math.isnan(before) else f"; with the mean it would be {_percent(before)}."
    if similarity >= 0.99:
        return Finding(question, "calm", f"Hardly: {facts}", rule)
    if similarity >= 0.9:
        return Finding(question, "notable", f"Somewhat: {facts}", rule)
    return Finding(question, "strong", f"Clearly: {facts}", rule)


def _cost(run: Run) -> Finding:
    question = "What does it cost?"
    rule = (
        "The time from the losses to their gradients includes the backward pass of plain training "
        "(about two thirds of a plain step). Computing the weights is the part specific to "
        "Jacobian descent: cheap below 5% of the step, notable below 20%, expensive above. On an "
        "accelerator, times are those of launching the work."
    )
    share, weights = run.mean("time_share"), run.mean("weights_time_share")
    if math.isnan(share):
        return Finding(question, "unknown", "The run did not record this.", rule)
    facts = f"computing the gradients takes {_percent(share)} of a step"
    if math.isnan(weights):
        return Finding(question, "unknown", f"No detailed timings: {facts}.", rule)
    facts += f", and computing the weights {_percent(weights)}."
    if weights >= 0.2:
        return Finding(question, "strong", f"Much: {facts}", rule)
    if weights >= 0.05:
        return Finding(question, "notable", f"A noticeable part: {facts}", rule)
    return Finding(question, "calm", f"Little: {facts}", rule)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%" if 0 < share < 0.1 else f"{100 * share:.0f}%"
