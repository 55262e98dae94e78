"""How the parameters of a graph are differentiated, why, and what would be faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from torch import Tensor
from typing_extensions import override

from lightning_jd.engines._hooks import hook_history
from lightning_jd.engines._objectives import Losses, Objectives
from lightning_jd.engines._parameters import NamedParameters, Parameters, named_parameters_of
from lightning_jd.engines.tape._tape import Tape
from lightning_jd.engines.tape.graph import may_be_hooked, walk
from lightning_jd.engines.tape.owners import Crossed, Evidence, Owners
from lightning_jd.engines.tape.plan import Certificates, memory
from lightning_jd.engines.tape.run import Request, TapeOptions


@dataclass(frozen=True)
class Line:
    """What happens to one parameter.

    Attributes:
        name: Its name.
        shape: Its shape.
        path: How its gradients are found.
        why: The reason.
        remedy: What would make it faster, if anything would.
    """

    name: str
    shape: tuple[int, ...]
    path: str
    why: str
    remedy: str


@dataclass(frozen=True, repr=False)
class Explanation:
    """How each parameter is differentiated; ``str()`` and ``repr()`` are a table.

    Attributes:
        lines: One per parameter.
        kind: ``"instances"``, ``"tasks"`` or ``"instances_tasks"``.
        m: The number of objectives.
    """

    lines: tuple[Line, ...]
    kind: str
    m: int

    @override
    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """The table for a notebook."""
        return f"<pre>{escape(str(self))}</pre>"

    @override
    def __str__(self) -> str:
        table = [("parameter", "shape", "path", "why")]
        table += [(line.name, _shape(line.shape), line.path, line.why) for line in self.lines]
        widths = [max(len(row[j]) for row in table) for j in range(3)]
        text = ["  ".join([*map(str.ljust, row[:3], widths), row[3]]) for row in table]
        text.insert(1, "  ".join("-" * width for width in [*widths, 20]))
        slow = sum(_is_slow(line.path, self.kind) for line in self.lines)
        size = f"{self.m} objectives ({self.kind}), {len(self.lines)} parameters"
        text.append(f"{size}, {slow} slow.")
        remedies: dict[str, list[str]] = {}
        for line in self.lines:
            if line.remedy:
                remedies.setdefault(line.remedy, []).append(line.name)
        for remedy, names in remedies.items():
            listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
            text.append(f"Faster ({listed}): {remedy}")
        return "\n".join(text)


def explain(losses: Losses | Objectives, params: Parameters) -> Explanation:
    """Say how the tape deals with each parameter of a model.

    The Gramian is computed once, so that what is reported is what happens; the graph is kept.

    Args:
        losses: The losses of one step, see :meth:`Objectives.of`.
        params: A module, tensors or (name, tensor) pairs.

    Example:
        >>> import torch
        >>> layer = torch.nn.Linear(3, 2)
        >>> print(explain(layer(torch.ones(4, 3)).sum(dim=1), layer))
        parameter  shape  path                 why
        ---------  -----  -------------------  --------------------
        weight     2 x 3  rule AddmmBackward0  one pass for all rows
        bias       2      rule AddmmBackward0  one pass for all rows
        4 objectives (instances), 2 parameters, 0 slow.
    """
    objectives = Objectives.of(losses)
    named = named_parameters_of(params)
    tape = Tape(objectives, named)
    tape.gramian()
    lines = []
    for name, tensor in named:
        path, lost_at = tape.paths[name], tape.lost_at.get(name)
        why, remedy = _reason(path, lost_at, objectives.kind)
        lines.append(Line(name, tuple(tensor.shape), path, why, remedy))
    return Explanation(tuple(lines), objectives.kind, objectives.m)


class Slow(NamedTuple):
    """Why the gradients of a parameter take more than one pass for all instances.

    Attributes:
        operation: Where rows could not be followed, or what there is no rule for; empty if that is
            not known.
        passes: How many passes there are instead of one.
        why: The reason, in words.
        remedy: What would make it faster, if anything would.
        is_mixed: Whether whole passes are repeated, and not a single operation.
    """

    operation: str
    passes: int
    why: str
    remedy: str
    is_mixed: bool = True


def slow_parameters(tape: Tape) -> dict[str, Slow]:
    """The parameters that a tape has differentiated once per instance, after the fact.

    Example:
        >>> import torch
        >>> layer, norm = torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)
        >>> losses = Objectives.of(norm(layer(torch.randn(4, 3))).square().sum(dim=1))
        >>> tape = Tape(losses, named_parameters_of(layer))
        >>> G = tape.gramian()
        >>> slow_parameters(tape)["weight"][:2]
        ('NativeBatchNormBackward0', 4)
    """
    kind, m = tape.objectives.kind, tape.objectives.m
    if kind == "tasks" or m == 1:
        return {}
    slow = {}
    for name, path in tape.paths.items():
        if _is_slow(path, kind):
            lost_at = tape.lost_at.get(name)
            operation = path.partition(" ")[2] or lost_at or ""
            is_mixed = not path.startswith("local")
            slow[name] = Slow(operation, m, *_reason(path, lost_at, kind), is_mixed)
    return slow


def _is_slow(path: str, kind: str) -> bool:
    how = path.split()[0]
    return how == "local" or (how in ("rows", "kernel") and kind != "tasks")


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "scalar"


def _reason(path: str, lost_at: str | None, kind: str) -> tuple[str, str]:
    how, _, operation = path.partition(" ")
    if how == "rule":
        if lost_at is None:
            return "one pass for all rows", ""
        return (
            f"one pass for all rows, after a probe: rows could not be followed through {lost_at}",
            f"no flow is known for {lost_at}; an equivalent of known operations avoids the probe",
        )
    if how == "local":
        return (
            f"there is no rule for {operation}, which is differentiated once per row",
            f"teach the tape with `register_rule({operation!r}, slot)`",
        )
    if how == "computed":
        return "computed with before it is used; rows are pulled back through that", ""
    if how == "unreached":
        return "no loss depends on it", ""
    if kind == "tasks":
        return "one pass per task", ""
    if lost_at is None:
        return "one pass per row", ""
    return f"one pass per row: {lost_at} mixes rows, or hides them", _REMEDIES.get(lost_at, "")


_NORM = (
    "BatchNorm in training mode mixes the rows; GroupNorm, LayerNorm or `eval()` do not, and "
    "`lightning_jd.doctor.replace_batch_norm(model)` puts GroupNorm in its place (for fine-tuning, "
    "batch_norm='frozen' leaves the model as it is)"
)
_REMEDIES = {
    **{f"{kind}BatchNormBackward0": _NORM for kind in ("Native", "Cudnn", "Miopen", "")},
    "SyncBatchNormBackward": _NORM,
    "CompiledFunctionBackward": "compiled code hides its operations; run it eagerly, with "
    '`torch.compiler.set_stance("force_eager")` around the forward pass',
}


class OnePass(NamedTuple):
    """Whether rules give the rows of all instances in one pass (one per task, for a matrix).

    Attributes:
        obstacle: Why not, or nothing.
        certificates: Those of graphs that differ in sizes only.
    """

    obstacle: str = ""
    certificates: Certificates | None = None


def one_pass_of(objectives: Objectives, named: NamedParameters, scale: float | Tensor) -> OnePass:
    """Plan for a graph, and run nothing of it.

    Args:
        objectives: The losses, those of instances.
        named: The parameters.
        scale: What the losses are multiplied by before they are differentiated.

    Example:
        >>> import torch
        >>> layer, norm = torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)
        >>> losses = Objectives.of(norm(layer(torch.randn(4, 3))).square().sum(dim=1))
        >>> one_pass_of(losses, list(layer.named_parameters()), 1.0).obstacle
        'NativeBatchNormBackward0 may mix instances'
    """
    request = Request(objectives, named, scale, TapeOptions(check="off"), retain_graph=True)
    if request.instances is None:
        return OnePass("there is one row only")
    graph = walk(objectives, request.tensors)
    known = memory.known(graph, request.types)
    certificates = memory.certificates(known, "sharded")
    if certificates.row_by_row:
        return OnePass("a certificate has failed")
    try:
        plan = known.plan(graph, request.owners, evidence=_NoProbe)
    except _NeedsProbe as needed:
        return OnePass(f"{graph.nodes[needed.node].name()} may mix instances")
    if hook_history.count(graph.nodes):
        return OnePass("a hook on the way may change gradients")
    if plan.by_rows:
        return OnePass(f"{next(iter(plan.lost_at.values()), 'an operation')} mixes instances")
    if plan.computed:
        return OnePass("parameters are computed with before they are used")
    for position, use in enumerate(plan.uses):
        node, rule = graph.nodes[use.node], plan.rule(use)
        if (
            rule.function is None
            or plan.arrangements[position] is None
            or plan.refused.get(position)
        ):
            return OnePass(f"there is no rule for {node.name()}")
        if any(may_be_hooked(node, name) for name in rule.saved):
            return OnePass("activations are computed again in the backward pass")
    return OnePass("", certificates)


class _NeedsProbe(Exception):  # noqa: N818  # it ends a search, and is no error
    """An operation would have to be probed."""

    def __init__(self, node: int) -> None:
        super().__init__()
        self.node = node


class _NoProbe(Evidence):
    """Evidence without probes."""

    @override
    def below(self, node: int, at: Crossed) -> Sequence[Owners | None] | None:
        raise _NeedsProbe(node)
