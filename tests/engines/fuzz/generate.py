"""Draws graphs, and writes them as source code."""

import math
import random
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from types import CodeType
from typing import Any, NamedTuple

import torch

from tests.engines.fuzz import parts
from tests.engines.fuzz.operations import (
    HOOKS,
    KINDS,
    LAYERS,
    LOSS_ODDS,
    LOSSES,
    OPERATIONS,
    Gaps,
)
from tests.engines.zoo import default_dtype
from tests.helpers.rows import scalars

STEPS = 8
#: A graph whose numbers are larger than this, or smaller than its inverse, is not written.
_LARGE = 50.0
_MANY = 3000
#: As ``torch.manual_seed``, which takes a tenth of the time of the fuzzer, for other devices.
_SEED = "torch.default_generator.manual_seed"
_NOT_LINEAR = ("clip(", "clip_norm(", "compress(", "shift(")


class Operation(NamedTuple):
    """An operation, its own random choices, and whether something of it changes between steps."""

    name: str
    seed: int
    late: bool


@dataclass(frozen=True)
class Graph:
    """A graph as it was drawn; the code of its operations follows from the shapes they meet.

    Attributes:
        dtype: The name of the type of parameters and inputs.
        shape: The shape of the input.
        operations: What happens to it.
        loss: How its end becomes objectives.
        autocast: The type of autocast, or nothing, ...
        from_step: ... and the step that it begins in.
        frozen: The position of a parameter that requires a gradient from step 5 on only, or -1.
        seed: The seed of the parameters.
    """

    dtype: str
    shape: tuple[int, ...]
    operations: tuple[Operation, ...]
    loss: Operation
    autocast: str = ""
    from_step: int = 0
    frozen: int = -1
    seed: int = 0

    @property
    def source(self) -> str:
        """The code: parameters, ``params``, and ``losses(t)``."""
        return self._written.source

    @property
    def written(self) -> set[str]:
        """The operations that fit."""
        return self._written.names

    @cached_property
    def _written(self) -> "_Writer":
        return _Writer(self)

    @property
    def is_linear(self) -> bool:
        """Whether the gradient at the parameters is linear in that of the losses."""
        return not any(name in self.source for name in _NOT_LINEAR)

    def precision(self, t: int) -> str:
        """The coarsest type of a step."""
        if self.autocast and t >= self.from_step:
            return self.autocast
        return "float32" if "torch.float32" in self.source and self.is_double else self.dtype

    @property
    def is_double(self) -> bool:
        """Whether casts to float32 lose digits."""
        return self.dtype == "float64"

    def build(self) -> dict[str, Any]:
        """New parameters, ``params``, and the function ``losses`` of the step."""
        names = {**vars(parts), "F": torch.nn.functional}
        exec(self._code, names)
        return names

    @cached_property
    def _code(self) -> CodeType:
        return compile(self.source, "<graph>", "exec")


def draw_graph(seed: int, dtype: str) -> Graph:
    """The graph of a seed. In half precision, every third is float32 under autocast."""
    draw = random.Random(f"{seed} {dtype}")
    batch, rank = draw.choice((1, 2, 3, 4, 4, 5, 6, 8, 9)), draw.choice((1, 1, 2, 2, 3))
    shape = (batch, *[draw.choice((2, 3, 4, 5)) for _ in range(rank)])
    changes = draw.random() < 0.8

    def operation(kind: dict[str, str]) -> Operation:
        late = changes and draw.random() < 0.5
        return Operation(draw.choice(list(kind)), draw.randrange(10**6), late)

    kinds, odds = zip(*KINDS, strict=True)
    drawn = draw.choices(kinds, odds, k=draw.randint(2, 10))
    if draw.random() < 0.15:
        drawn.insert(draw.randrange(len(drawn)), HOOKS)
    operations = tuple(operation(kind) for kind in [LAYERS, *drawn])
    loss = operation({draw.choices(list(LOSSES), LOSS_ODDS)[0]: ""})
    graph = Graph(dtype, shape, operations, loss, seed=seed % 10**6)
    if dtype in ("float16", "bfloat16") and draw.random() < 0.35:
        graph = replace(graph, dtype="float32", autocast=dtype, from_step=draw.choice((0, 0, 5)))
    if changes and draw.random() < 0.08:
        graph = replace(graph, frozen=draw.randrange(4))
    return graph


class _Writer:
    """Writes one operation after the other, and runs what it has in order to know the shape."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._setup: list[str] = []
        self._lines: list[str] = []
        self._frozen = graph.frozen
        self.names: set[str] = set()
        shape: tuple[int, ...] | None = graph.shape
        for operation in graph.operations:
            shape = self._add(operation, OPERATIONS[operation.name], shape) or shape
        loss = graph.loss, LOSSES[graph.loss.name], shape
        if self._add(*loss, is_loss=True) is None:
            self._frozen = -1
            self._add(*loss, is_loss=True)
        if not "".join(self._lines[-1:]).startswith("return"):
            fallback = "return (x + 1).square().flatten(1).mean(1)"
            self._lines += [fallback if len(shape) > 1 else "return x.square()"]
        self.source = self._source()

    def _add(self, operation, template, shape, *, is_loss=False):
        """Write an operation; the shape after it, or ``None`` if it does not fit."""
        before = self._setup[:], self._lines[:]
        gaps = Gaps(
            *(shape, operation.seed), late=operation.late,
            parameter=self._parameter, module=self._module,
        )  # fmt: skip
        with suppress(Exception):
            self._lines += _filled(template, gaps).split("\n")
            if (found := self._shape(is_loss=is_loss)) is not None:
                self.names.add(operation.name)
                return found
        self._setup, self._lines = before
        return None

    def _parameter(self, shape, chance, swapped):
        text = f"par({', '.join(map(str, shape))})"
        alike = [line.split()[0] for line in self._setup if line.endswith(f" = {text}")]
        name = f"p{len(self._setup)}"
        if alike and chance < 0.25:
            name = alike[0]  # tied
        else:
            self._setup.append(f"{name} = {text}")
        if not swapped:
            return name
        other = f"p{len(self._setup)}"
        self._setup.append(f"{other} = {text}")
        return f"({name} if t < 5 else {other})"

    def _module(self, text):
        self._setup.append(f"m{len(self._setup)} = mod({text})")
        return self._setup[-1].split()[0]

    def _shape(self, *, is_loss):
        """The shape of ``x``, or of the losses, if it is the same in all steps and of use."""
        end = [] if is_loss else ["return x"]
        names = {**vars(parts), "F": torch.nn.functional}
        with default_dtype(torch.float64), torch.random.fork_rng():
            if self._graph.autocast:  # not all operations take what others return
                exec(self._source(end), names)
                names["losses"](5)
            exec(self._source(end, plain=True), names)
            found = [names["losses"](t) for t in (0, 5)]
            if is_loss:
                found = [torch.stack(scalars(f)) for f in found]
            for x in found:
                if is_loss or x.requires_grad:
                    live = [p for p in names["params"] if p.requires_grad]
                    torch.autograd.grad(x.sum(), live, allow_unused=True)
        early, late = found
        use = early.shape == late.shape and 0 < early.numel() <= _MANY and early.is_floating_point()
        if not use or (not is_loss and early.ndim < 2) or not (is_loss or early.shape[0] < 20):
            return None
        sizes = [float(x.detach().abs().max()) for x in found]
        if not all(math.isfinite(s) and 1 / _LARGE < s < _LARGE for s in sizes):
            return None
        return tuple(early.shape)

    def _source(self, end=(), *, plain=False):
        graph = self._graph
        dtype = "float64" if plain else graph.dtype
        lines = [*self._lines, *end]
        if graph.autocast and not plain:
            lines = ["    " + line for line in lines]
            on = f", enabled=t >= {graph.from_step}" if graph.from_step else ""
            lines.insert(0, f"with torch.autocast('cpu', torch.{graph.autocast}{on}):")
        holders = ", ".join(line.split()[0] for line in self._setup)
        if self._frozen >= 0 and not end:
            lines.insert(0, f"params[{self._frozen} % len(params)].requires_grad_(t >= 5)")
        head = [
            f"torch.set_default_dtype(torch.{dtype})",
            f"{_SEED}({graph.seed})",
            *self._setup,
            f"params = [p for holder in [{holders}] for p in own(holder)]",
            "def losses(t):",
        ]
        body = [f"{_SEED}(t)", f"x = kept = torch.randn{graph.shape}", *lines]
        return "\n".join([*head, *["    " + line for line in body]]) + "\n"


def _filled(template: str, gaps: Gaps) -> str:
    """The template with its gaps filled, inner ones last."""
    while "{" in template:
        start, depth = template.index("{"), 0
        for end in range(start, len(template)):
            depth += {"{": 1, "}": -1}.get(template[end], 0)
            if depth == 0:
                break
        value = eval(template[start + 1 : end], {}, gaps)
        template = template[:start] + str(value) + template[end + 1 :]
    return template
