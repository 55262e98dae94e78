"""Compares what the package delivers with rows by autograd on the same graph."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lightning_jd import backward
from lightning_jd.aggregators import Constant, UPGrad
from lightning_jd.engines import Objectives, Tape, gramian, jacobian
from lightning_jd.engines.tape import _compare
from lightning_jd.engines.tape.owners import _probe
from lightning_jd.engines.tape.plan import memory
from lightning_jd.errors import GraphError, NonFiniteError
from tests.engines.fuzz.generate import STEPS, Graph
from tests.engines.zoo import default_dtype
from tests.helpers.rows import scalars

#: The largest error that is right without further ado, relative to the lengths of the rows: a few
#: units of half precision, and a fifth at most of what must be found (10 % in half precision, 1 %
#: in float32). Larger ones are compared with the rounding errors of this graph, as measured.
TOLERANCE = {"float64": 1e-8, "float32": 1e-3, "bfloat16": 0.02, "float16": 0.02}
#: Rounding is measured with losses times 1 ± a few times two to the minus this: near 1, so that a
#: backward pass that is not linear changes by less than the tolerance, and exact in each type.
_BITS = {"float64": 26, "float32": 11, "bfloat16": 5, "float16": 7}
#: How many times what was measured is still rounding.
_FEW = 4.0
#: Results are zero below about this, a Gramian of half precision, which is float32, too.
_UNDERFLOW = {"float64": 1e-200, "float32": 1e-36, "bfloat16": 1e-36, "float16": 1e-6}
#: What certificates say; the last one only where no hook and no function explains it.
_ALARMS = ("Please report the model", "A traced step must", "please report the model")


class Rows(NamedTuple):
    """The rows of one step: one float64 matrix (m, n) for each parameter, or ``None``."""

    blocks: list[Tensor | None]
    whole: Tensor


class Wrong(NamedTuple):
    """The first thing that was found to be wrong."""

    mode: str
    step: int
    what: str


@dataclass
class Outcome:
    """What came of a graph.

    Attributes:
        wrong: The first wrong result of each mode.
        refused: The first refusal, if there is one.
        alarms: Certificates that complained, by mode.
        false_alarms: Those of them without a cause.
        void: Why the graph cannot be compared, or nothing.
        rounded: How many results were right only in view of measured rounding errors.
    """

    wrong: list[Wrong] = field(default_factory=list)
    refused: str = ""
    alarms: list[str] = field(default_factory=list)
    false_alarms: list[str] = field(default_factory=list)
    void: str = ""
    rounded: int = 0


def rows_of(losses: Any, params: list[Tensor], factor: float = 1.0) -> Rows:
    """One backward pass per objective."""
    live = [p for p in params if p.requires_grad]
    each = []
    for loss in scalars(losses):
        found = torch.autograd.grad(
            *(loss, live, torch.full_like(loss, factor)), retain_graph=True, allow_unused=True
        )
        by_parameter = dict(zip(map(id, live), found, strict=True))
        each.append([by_parameter.get(id(p)) for p in params])
    blocks: list[Tensor | None] = []
    for p, column in zip(params, zip(*each, strict=True), strict=True):
        dense = [torch.zeros_like(p) if g is None else g.to_dense() for g in column]
        reached = any(g is not None for g in column)
        block = torch.stack(dense).double().reshape(len(each), -1) / factor
        blocks.append(block if reached else None)
    kept = [b for b in blocks if b is not None]
    return Rows(blocks, torch.cat(kept, 1) if kept else torch.zeros(len(each), 0).double())


def _taken(steps: int) -> list[int]:
    """The steps that are taken: rules, a trace, a program that is certified, one that is not.

    The fourth would be like the third; from the fifth on something changes.
    """
    return [t for t in range(steps) if t != 4]


class Checked:
    """The steps of a graph by autograd, and whether other results agree with them."""

    def __init__(self, graph: Graph, steps: int = STEPS) -> None:
        self.graph = graph
        self.rounded = 0
        self._noise: dict[int, Rows] = {}
        with default_dtype(torch.float64):
            names = graph.build()
            self.steps = {t: rows_of(names["losses"](t), names["params"]) for t in _taken(steps)}

    def noise(self, t: int) -> Rows:
        """How far rows of the same step are from each other that differ by rounding only."""
        if t not in self._noise:
            names = self.graph.build()
            losses, few = names["losses"](t), 2.0 ** -_BITS[self.graph.precision(t)]
            factors = [1 + few, 1 - few, 1 + 3 * few, 1 - 3 * few, 1 + 5 * few]
            found = [rows_of(losses, names["params"], factor) for factor in factors]
            exact = self.steps[t]
            blocks = [
                None if b is None else _largest([f.blocks[k] - b for f in found])
                for k, b in enumerate(exact.blocks)
            ]
            self._noise[t] = Rows(blocks, _largest([f.whole - exact.whole for f in found]))
        return self._noise[t]

    def plain(self, t: int, w: Tensor, k: int) -> Tensor:
        """What one ordinary pass gives for a parameter, which rounds in its own way."""
        names = self.graph.build()
        losses = scalars(names["losses"](t))
        weights = [torch.full_like(loss, float(x)) for loss, x in zip(losses, w, strict=True)]
        (found,) = torch.autograd.grad(losses, names["params"][k], weights)
        return found.to_dense().double().reshape(-1)

    def agrees(self, t: int, off: Tensor, size: Tensor, noise: Callable[[Rows], Tensor]) -> str:
        """Nothing if errors are small relative to sizes or to rounding, else their size."""
        precision = self.graph.precision(t)
        eps = torch.finfo(getattr(torch, precision)).eps
        if bool((off <= TOLERANCE[precision] * size).all()):
            return ""
        rounding = noise(self.noise(t))
        cancelled = eps * (rounding >= 0.05 * size)  # zero in theory: of the size of what cancels
        if eps < 1e-5:
            cancelled = 1024 * eps  # a norm divides by its epsilon
        rounding = _FEW * rounding + cancelled * noise(self.steps[t]) + _UNDERFLOW[precision]
        if bool((off <= TOLERANCE[precision] * size + rounding).all()):
            self.rounded += 1
            return ""
        return f"off by {float((off / size).nan_to_num(posinf=9e9).max()):.1e}"

    def wrong_gramian(self, t: int, G: Tensor, k: int | None = None) -> str:
        """What is wrong about the Gramian, of all parameters or of one."""

        def lengths(rows: Rows) -> Tensor:
            return (rows.whole if k is None else rows.blocks[k]).norm(dim=1)

        J = self.steps[t].whole if k is None else self.steps[t].blocks[k]
        length = lengths(self.steps[t])
        if G.shape != (len(J), len(J)):
            return f"Gramian of shape {tuple(G.shape)}"

        largest = self.steps[t].whole.norm(dim=1).max()

        def rounding(rows: Rows) -> Tensor:
            if rows is self.steps[t]:  # what is far smaller than the largest, or zero in theory
                least = 1024 * torch.finfo(torch.float32).eps * largest
                return largest * (length[:, None] + length[None] + least)
            return (outer := torch.outer(lengths(rows), length)) + outer.T

        off = (G.double() - J @ J.T).abs()
        said = self.agrees(t, off, torch.outer(length, length), rounding)
        return f"Gramian {said}" if said else ""

    def wrong_gradients(self, t: int, w: Tensor, grads: list[Tensor | None]) -> str:
        """What is wrong about the combined gradients."""
        rows, weights = self.steps[t], w.double().abs()
        largest = (weights @ rows.whole.norm(dim=1)).max()
        for k, (block, g) in enumerate(zip(rows.blocks, grads, strict=True)):
            if block is None or g is None:
                if (block is None) != (g is None):
                    return f"parameter {k}: {'missing' if g is None else 'must be None'}"
                continue
            off = (g.to_dense().double().reshape(-1) - w.double() @ block).norm()

            def rounding(found: Rows, k: int = k) -> Tensor:
                if found is rows:
                    return largest
                each = weights @ found.blocks[k].norm(dim=1)
                return torch.maximum(
                    each, (self.plain(t, w, k) - w.double() @ rows.blocks[k]).norm()
                )

            if said := self.agrees(t, off, weights @ block.norm(dim=1), rounding):
                return f"parameter {k}: .grad {said}"
        return ""

    def wrong_jacobian(self, t: int, parts: tuple[Tensor, ...]) -> str:
        """What is wrong about the Jacobian, row by row and parameter by parameter."""
        rows = self.steps[t]
        largest = rows.whole.norm(dim=1).max()
        for k, (block, found) in enumerate(zip(rows.blocks, parts, strict=True)):
            exact = torch.zeros_like(found) if block is None else block

            def rounding(of: Rows, k: int = k, found: Tensor = found) -> Tensor:
                if of is rows or of.blocks[k] is None:
                    return largest.expand(len(found))
                each = of.blocks[k].norm(dim=1)
                return torch.maximum(each, each.mean())

            off = (found.double() - exact.double()).norm(dim=1)
            if said := self.agrees(t, off, exact.double().norm(dim=1), rounding):
                return f"parameter {k}: Jacobian {said}"
        return ""


def _largest(differences: list[Tensor]) -> Tensor:
    return torch.stack(differences).abs().amax(0)


def _weights(m: int) -> Tensor:
    return torch.linspace(-1.0, 2.0, m, dtype=torch.float64) if m > 1 else torch.ones(1)


def _backward(memory: str, times: int = 1) -> Callable[..., str]:
    def run(checked: Checked, t: int, losses: Any, params: list[Tensor]) -> str:
        w = _weights(len(checked.steps[t].whole))
        for i in range(times):
            report = backward(
                *(losses, params, Constant(w.tolist())), memory=memory, retain_graph=i < times - 1
            )
            grads = [p.grad for p in params]
            said = checked.wrong_gramian(t, report.gramian)
            if said := said or checked.wrong_gradients(t, (i + 1) * w, grads):
                return said
        return ""

    return run


def _upgrad(checked: Checked, t: int, losses: Any, params: list[Tensor]) -> str:
    upgrad = UPGrad(relative_to="trace")  # whatever the objectives are
    w = backward(losses, params, upgrad).weights
    grads = [p.grad for p in params]
    if said := checked.wrong_gradients(t, w, grads):
        return said
    if checked.graph.precision(t) != "float64":  # weights are no smooth function of G
        return ""
    J = checked.steps[t].whole
    update, found = J.T @ upgrad.weights(J @ J.T), J.T @ w.double()
    off = float((update - found).norm() / J.norm().clamp(min=1e-12))
    return f"weights of UPGrad off by {off:.1e}" if off > 1e-5 else ""


def _gramian(checked: Checked, t: int, losses: Any, params: list[Tensor]) -> str:
    return checked.wrong_gramian(t, gramian(losses, params))


def _gramian_of_one(checked: Checked, t: int, losses: Any, params: list[Tensor]) -> str:
    k = checked.graph.seed % len(params)
    if checked.steps[t].blocks[k] is None:
        return ""
    return checked.wrong_gramian(t, gramian(losses, [params[k]]), k)


def _jacobian(checked: Checked, t: int, losses: Any, params: list[Tensor]) -> str:
    J = jacobian(losses, params)
    return checked.wrong_jacobian(t, J.split([p.numel() * p.requires_grad for p in params], 1))


def _unchecked(mode: str) -> Callable[..., str]:
    memory = "low" if mode in ("low", "gramian") else "fast"

    def run(checked: Checked, t: int, losses: Any, params: list[Tensor]) -> str:
        named = [(str(k), p) for k, p in enumerate(params) if p.requires_grad]
        one = checked.graph.seed % len(params) if mode == "gramian of one" else None
        if one is not None:
            if checked.steps[t].blocks[one] is None:
                return ""
            named = [("", params[one])]
        tape = Tape(Objectives.of(losses), named, memory=memory, check="off")
        w = _weights(len(checked.steps[t].whole))
        if (said := checked.wrong_gramian(t, tape.gramian(), one)) or one is not None:
            return said
        found = dict(zip([id(p) for _, p in named], tape.gradients(w), strict=True))
        return checked.wrong_gradients(t, w, [found.get(id(p)) for p in params])

    return run


#: What a user calls; each goes through all steps by itself, as a program of its own would.
MODES: dict[str, Callable[..., str]] = {
    "fast": _backward("fast"),
    "low": _backward("low"),
    "twice": _backward("fast", 2),
    "upgrad": _upgrad,
    "gramian": _gramian,
    "gramian of one": _gramian_of_one,
    "jacobian": _jacobian,
}
_WITHOUT_CERTIFICATE = {mode: _unchecked(mode) for mode in MODES}


@contextmanager
def _heard() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        yield heard


def _run(
    mode: Callable[..., str], checked: Checked, steps: int
) -> tuple[tuple[int, str] | None, str, str]:
    """The first step that is wrong and what is; the first refusal; the first alarm."""
    memory.forget()  # as in a process of its own
    for generator in (_compare._RANDOM, _probe._random_numbers):
        generator.manual_seed(0)
    names = checked.graph.build()
    refused = alarm = ""
    alarms = _ALARMS if checked.graph.is_linear else _ALARMS[:-1]
    for t in _taken(steps):
        for p in names["params"]:
            p.grad = None
        with _heard() as heard:
            losses = names["losses"](t)
            try:
                said = mode(checked, t, losses, names["params"])
            except GraphError as error:
                said, refused = "", refused or f"step {t}: {error}"
            except NonFiniteError as error:
                if all(bool(loss.isfinite().all()) for loss in tree_leaves(losses)):
                    said = str(error)
                else:  # the gradients of an infinite loss may be finite
                    said, refused = "", refused or f"step {t}: {error}"
            except Exception as error:
                said = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
        text = " ".join(str(h.message) for h in heard)
        alarm = alarm or next((f"step {t}: {text}" for a in alarms if a in text), "")
        if said:
            return (t, said), refused, alarm
    return None, refused, alarm


def compare(graph: Graph, modes: tuple[str, ...] = tuple(MODES), steps: int = STEPS) -> Outcome:
    """Run a graph in all steps and modes, and compare each with autograd."""
    outcome = Outcome()
    with default_dtype(torch.float64), torch.random.fork_rng():
        with _heard():
            try:
                checked = Checked(graph, steps)
            except Exception as error:
                outcome.void = f"{type(error).__name__}: {error}"
                return outcome
        each = [rows.whole for rows in checked.steps.values()]
        if any(not rows.isfinite().all() or not rows.any() for rows in each):
            outcome.void = "gradients that are not finite, or all zero"
            return outcome
        for name in modes:
            wrong, refused, alarm = _run(MODES[name], checked, steps)
            if wrong is not None:
                outcome.wrong.append(Wrong(name, *wrong))
            outcome.refused = outcome.refused or (refused and f"{name}, {refused}")
            if alarm:
                outcome.alarms.append(f"{name}, {alarm}")
                cause, _, _ = _run(_WITHOUT_CERTIFICATE[name], checked, steps)
                if cause is None and wrong is None:
                    outcome.false_alarms.append(f"{name}, {alarm}")
        outcome.rounded = checked.rounded
    return outcome
