"""A run in a few sentences: facts, and what to act on, by rules that are stated beside them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

from lightning_jd.report._promise import (
    HARM,
    PLAIN,
    SAME,
    WORSE,
    Problem,
    percent,
    problems,
    suffering,
)
from lightning_jd.report._run import Run

Level = Literal["fact", "act", "unknown"]
STRONG = 3.0  # imbalance of the norms
PAIRS = 0.25  # share of the pairs in conflict that counts, if it lasts
OPPOSED = -0.1  # mean cosine from which on a conflict is one of directions, not of noise


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
    """The findings: conflict, imbalance, regime, who suffers, change of the update, cost, batch."""
    found = []
    for question, (answer_of, rule) in _QUESTIONS.items():
        answer = answer_of(run)
        if isinstance(answer, Problem):
            text = f"{answer.what} {answer.why}"
            found.append(Finding(question, "act", text, rule, answer.remedy, answer.page))
        elif answer:
            found.append(Finding(question, "fact", answer, rule))
        elif answer_of not in (_batch, _regime):  # which not every kind of objective has
            found.append(Finding(question, "unknown", "The run did not record this.", rule))
    return found


def _conflict(run: Run) -> str:
    harmed, pairs = run.mean("mean_violation_share"), run.mean("conflict_rate")
    if math.isnan(harmed) or math.isnan(pairs):
        return ""
    some = harmed >= 0.01 or pairs >= 0.05
    amount = "Yes, strong conflict" if harmed >= 0.1 else "Yes, some" if some else "Hardly"
    return (
        f"{amount}: {percent(pairs)} of the pairs of gradients conflict, and the mean update would "
        f"make {percent(harmed)} of the objectives worse."
    )


def _imbalance(run: Run) -> str:
    factor = run.mean("norm_imbalance")
    if math.isnan(factor):
        return ""
    amount = "Yes, strongly" if factor >= STRONG else "Yes" if factor >= 1.5 else "No"
    answer = (
        f"{amount}: norms typically differ from their geometric mean by a factor of {factor:.2g}"
    )
    norms = {name: track.mean() for name, track in run.members("norm/").items()}
    if len(norms) > 1:
        answer += f"; the largest belong to “{max(norms, key=lambda name: norms[name])}”"
    return f"{answer}."


def _regime(run: Run) -> str:
    """One of the three regimes of Kim and N'guessan (arXiv:2605.10136), and what it calls for."""
    conflict, factor = _persistent_conflict(run), run.mean("norm_imbalance")
    if conflict is None or math.isnan(factor):
        return ""
    imbalance = f"norms differ by a factor of {factor:.2g}" if factor >= STRONG else ""
    if conflict and imbalance:
        return (
            f"Persistent directional conflict and imbalance of magnitude: {conflict}, and "
            f"{imbalance}. Use a method that protects every task at any scale ('upgrad', "
            "'config'), or give the tasks parameters of their own and balance their losses."
        )
    if conflict:
        return (
            f"Persistent directional conflict: {conflict}. Reweighting cannot resolve it. Use a "
            "method that protects every task ('upgrad', 'config'), or give the tasks parameters of "
            "their own (heads, adapters); where they exclude one another, state a `preference`."
        )
    if imbalance:
        return (
            f"Imbalance of magnitude: {imbalance}, without lasting conflict. Reweighting is "
            "enough: fixed weights, a balancer ('uw', 'gradnorm'), or 'normalized'."
        )
    return (
        "Neither persistent conflict nor imbalance. The plain sum is enough ('sum', 'mean'), and "
        "costs less."
    )


def _persistent_conflict(run: Run) -> str | None:
    """What lasts, in words; empty if nothing does, ``None`` if the run did not record it."""
    points = run.tracks["conflict_rate"].points() if "conflict_rate" in run.tracks else []
    late = [rate for step, rate, _ in points if step >= points[-1][0] / 2]
    if run.cosines is None or not late:
        return None
    names, matrix = run.cosines.names, run.cosines.matrix
    pairs = [
        (cosine, f"“{names[j]}” and “{names[i]}”")
        for i, row in enumerate(matrix)
        for j, cosine in enumerate(row[:i])
        if cosine is not None
    ]
    worst, whose = min(pairs, default=(1.0, ""))
    lasting = sum(rate >= PAIRS for rate in late) / len(late)
    if lasting < 0.5 or worst > OPPOSED:
        return ""
    return (
        f"in {percent(lasting)} of the second half of the run at least {percent(PAIRS)} of the "
        f"pairs conflict, and the mean cosine of {whose} is {worst:.2f}"
    )


def _harm(run: Run) -> str | Problem:
    harmed, before = run.mean("violation_share"), run.mean("mean_violation_share")
    if math.isnan(harmed):
        return ""
    if run.method.get("protects") and (found := problems(run)):
        return found[0]
    answer = f"Per step, {percent(harmed)} of the objectives"
    answer += "." if math.isnan(before) else f"; with the mean it would be {percent(before)}."
    name, share = next(iter(suffering(run).items()), ("", 0.0))
    return f"{answer} Most often {name}, in {percent(share)} of the steps." if share else answer


def _change(run: Run) -> str | Problem:
    similarity, before = run.mean("similarity_to_mean"), run.mean("mean_violation_share")
    if math.isnan(similarity):
        return ""
    if run.aggregator in PLAIN:
        advice = " Try 'upgrad' to resolve the conflict." if before >= HARM else ""
        return f"No: this is plain training.{advice}"
    if not run.method.get("protects") and (found := problems(run)):
        return found[0]
    amount = "Hardly" if similarity >= 0.99 else "Somewhat" if similarity >= 0.9 else "Clearly"
    answer = f"{amount}: its cosine to the mean update is {similarity:.3f}."
    if similarity >= 0.99 and before < HARM:
        answer += " There is little conflict to resolve; 'mean' costs less."
    return answer


def _cost(run: Run) -> str:
    sentences = {
        f"A step takes {run.mean('cost'):.2f} times as long as a plain step.": "cost",
        f"Computing the gradients takes {percent(run.mean('time_share'))} of a step.": "time_share",
        f"Computing the weights takes {percent(run.mean('weights_time_share'))}.": (
            "weights_time_share"
        ),
    }
    return " ".join(text for text, name in sentences.items() if not math.isnan(run.mean(name)))


def _batch(run: Run) -> str:
    noise, signal = run.mean("gradient_noise"), run.mean("gradient_signal")
    if math.isnan(noise):
        return ""
    if signal <= 0:
        return "Yes: the gradient is lost in its noise."
    ratio = noise / signal
    amount = "Yes" if ratio > 2 else "No, a smaller one would do" if ratio < 0.5 else "Hardly"
    return f"{amount}: the variance of the mean gradient is {ratio:.2g} times its squared length."


_QUESTIONS: dict[str, tuple[Callable[[Run], str | Problem], str]] = {
    "Is there conflict?": (
        _conflict,
        "Strong if the mean of the gradients would make at least 10% of the objectives worse, on "
        "average over the steps; some if at least 1%, or if at least 5% of the pairs of gradients "
        "conflict (cosine below -0.001); otherwise little.",
    ),
    "Are the gradients imbalanced?": (
        _imbalance,
        "The factor is the geometric standard deviation of the gradient norms. Below 1.5 they are "
        "balanced, up to 3 imbalanced, above 3 strongly imbalanced.",
    ),
    "Which regime is it?": (
        _regime,
        "Of named tasks. Persistent directional conflict: at least a quarter of the pairs conflict "
        "in at least half of the second half of the run, and the mean cosine of some pair over the "
        "run is below -0.1. Imbalance of magnitude: a factor of at least 3. Conflict that passes "
        "is neither. The regimes are those of arXiv:2605.10136; the thresholds are ours.",
    ),
    "Who gets worse?": (
        _harm,
        "An objective gets worse, to first order, if the cosine of its gradient with the update is "
        f"below -0.001. One should act if a task gets worse in more than {percent(WORSE)} of the "
        "recorded steps although the method claims to protect it.",
    ),
    "Does the method change the update?": (
        _change,
        "The mean cosine between the update and the mean of the gradients: hardly from 0.99, "
        f"somewhat from 0.9, clearly below. One should act if it is above {SAME} while at least "
        f"{percent(HARM)} of the objectives get worse.",
    ),
    "What does it cost?": (
        _cost,
        "A few steps were measured on the host, each beside the backward pass of plain training on "
        "the same batch; the factor is the time of a step relative to a plain step. Not measured "
        "on accelerators and on several processes. The share of the weights is that of the whole "
        "step.",
    ),
    "Would a larger batch pay?": (
        _batch,
        "With one objective per example: the variance of the mean gradient of a batch, relative to "
        "the squared length of the true gradient; both are unbiased estimates, averaged over the "
        "recorded steps. Above 2, a larger batch pays; below 0.5, a smaller one would do. (At 1, "
        "the batch is the gradient noise scale.)",
    ),
}
