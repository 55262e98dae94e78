# ruff: noqa: E501
"""Makes a failing graph small, and writes it as a script that runs alone."""

import ast
import inspect
import re
import time
from collections.abc import Iterator
from dataclasses import replace

import torch

from tests.engines.fuzz import parts
from tests.engines.fuzz.compare import Wrong, compare
from tests.engines.fuzz.generate import Graph, Operation
from tests.engines.zoo import default_dtype

_CALLS = {
    "fast": "G = jd.backward(ls, params, Constant(w.tolist())).gramian",
    "low": "G = jd.backward(ls, params, Constant(w.tolist()), memory='low').gramian",
    "twice": "jd.backward(ls, params, Constant(w.tolist()), retain_graph=True); "
    "G = jd.backward(ls, params, Constant(w.tolist())).gramian; w = 2 * w",
    "upgrad": "report = jd.backward(ls, params, 'upgrad'); G, w = report.gramian, report.weights.double()",
    "gramian": "G = jd.gramian(ls, params)",
    "gramian of one": "G = jd.gramian(ls, [params[{k}]]); J = {{{k}: J[{k}]}}",
    "jacobian": "found = jd.jacobian(ls, [p for p in params if p.requires_grad]).double(); "
    "G = found @ found.T",
}
_CHECK = """
for t in range({steps}):
    ls = losses(t)
    each = list(ls.values()) if isinstance(ls, dict) else list(ls.reshape(-1)) if isinstance(ls, torch.Tensor) else ls
    live = [p for p in params if p.requires_grad]
    rows = [torch.autograd.grad(l, live, retain_graph=True, allow_unused=True) for l in each]
    J = {{k: torch.stack([(p * 0 if g is None else g.to_dense()).reshape(-1) for g in column]).double()
         for k, (p, column) in enumerate(zip(live, zip(*rows)))}}
    w = torch.linspace(-1, 2, len(each), dtype=torch.float64) if len(each) > 1 else torch.ones(1).double()
    for p in params: p.grad = None
    try:
        {call}
    except Exception as error:
        print(f"step {{t}}: {{type(error).__name__}}: {{str(error)[:200]}}"); continue
    R = sum(block @ block.T for block in J.values())
    said = [f"Gramian {{float((G.double() - R).norm() / R.norm()):.1e}}"]
    for k, block in J.items():
        if live[k].grad is not None:
            off = (live[k].grad.to_dense().double().reshape(-1) - w.to(block) @ block).norm()
            said.append(f".grad {{k}} {{float(off / (w.abs().to(block) @ block.norm(dim=1))):.1e}}")
    print(f"step {{t}}: relative errors: {{', '.join(said)}}")
"""


def _kind(what: str) -> str:
    """Numbers that are wrong are one kind of failure, each exception is another."""
    return what.split(":")[0] if re.match(r"\w+(Error|Exception)", what) else "numbers"


def _smaller(graph: Graph) -> Iterator[Graph]:
    """Graphs with one thing less, the largest things first."""
    operations = graph.operations
    for size in (4, 2, 1):
        for i in reversed(range(len(operations) - size + 1)):
            yield replace(graph, operations=operations[:i] + operations[i + size :])
    if graph.loss != (plain := Operation("instances", 0, False)):
        yield replace(graph, loss=plain)
    if graph.autocast:
        yield replace(graph, autocast="", dtype=graph.autocast)
        yield replace(graph, autocast="")
    if graph.frozen >= 0:
        yield replace(graph, frozen=-1)
    for i, operation in enumerate(operations):
        if operation.late:
            early = operation._replace(late=False)
            yield replace(graph, operations=(*operations[:i], early, *operations[i + 1 :]))
    for i, size in enumerate(graph.shape):
        if size > 2:
            yield replace(graph, shape=(*graph.shape[:i], 2, *graph.shape[i + 1 :]))
    if len(graph.shape) > 2:
        yield replace(graph, shape=graph.shape[:-1])


def shrink(graph: Graph, wrong: Wrong, seconds: float = 30.0) -> tuple[Graph, Wrong]:
    """The smallest graph that was found to fail in the same way."""
    end = time.monotonic() + seconds
    while True:
        for candidate in _smaller(graph):
            if time.monotonic() > end:
                return graph, wrong
            found = compare(candidate, (wrong.mode,), wrong.step + 1).wrong
            if found and _kind(found[0].what) == _kind(wrong.what):
                graph, wrong = candidate, found[0]
                break
        else:
            return graph, wrong


def _used_parts(source: str) -> str:
    """The definitions that some code needs."""
    text = inspect.getsource(parts)
    found: dict[int, str] = {}
    definitions = [n for n in ast.parse(text).body if isinstance(n, ast.ClassDef | ast.FunctionDef)]
    for _ in definitions:  # definitions use one another
        everything = source + "".join(found.values())
        for d in definitions:
            if re.search(rf"\b{d.name}\b", everything):
                found[d.lineno] = str(ast.get_source_segment(text, d))
    return "\n\n\n".join(found[line] for line in sorted(found))


def script(graph: Graph, wrong: Wrong) -> str:
    """A program that shows the failure, and needs nothing but torch and the package."""
    with default_dtype(torch.float64):
        call = _CALLS[wrong.mode].format(k=graph.seed % len(graph.build()["params"]))
    return "\n".join(
        [
            f'"""{wrong.mode}, step {wrong.step}: {wrong.what}"""',
            "import warnings",
            "import torch",
            "import torch.nn.functional as F",
            "from torch import nn",
            "import lightning_jd as jd",
            "from lightning_jd.aggregators import Constant",
            "warnings.simplefilter('ignore')",
            _used_parts(graph.source),
            graph.source,
            _CHECK.format(steps=wrong.step + 1, call=call).strip(),
            "",
        ]
    )
