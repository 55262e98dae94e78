"""Parameters that are computed with before they are used, such as normalised weights.

The operation that consumes the result gives one gradient per objective *of the result*; these rows
are pulled back through the computation, which does not depend on the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from lightning_jd.engines._columns import to_columns
from lightning_jd.engines._hooks import hooks_silenced
from lightning_jd.engines.tape.contributions import Contribution, Rows
from lightning_jd.engines.tape.graph import Graph, Placement
from lightning_jd.engines.tape.plan import Plan


def computed_rows(
    graph: Graph,
    plan: Plan,
    parts: Mapping[int, Sequence[Contribution]],
    parameters: Mapping[int, Tensor],
    m: int,
) -> list[Contribution]:
    """Rows of the parameters that are computed with, from the contributions of all uses."""
    found = _pulled_back(graph, plan, parts, parameters, m)
    for unit in plan.units:
        (parameter, *_) = unit.parameters
        if parameter in parameters:
            for position in unit.uses:
                for part in parts.get(position, ()):
                    rows = part.rows()
                    found[parameter] = found[parameter] + rows if parameter in found else rows
    return [
        Rows(rows, Placement(parameter, rows.shape[1], (rows.shape[1],)))
        for parameter, rows in found.items()
    ]


def _pulled_back(
    graph: Graph,
    plan: Plan,
    parts: Mapping[int, Sequence[Contribution]],
    parameters: Mapping[int, Tensor],
    m: int,
) -> dict[int, Tensor]:
    results: list[GradientEdge] = []
    rows: list[Tensor] = []
    precision = torch.float32
    for position in plan.virtual:
        use = plan.uses[position]
        for part in parts.get(position, ()):
            node = graph.nodes[use.edge.node]
            dtype = node._input_metadata[use.edge.output].dtype
            results.append(GradientEdge(node, use.edge.output))
            shape = (m, *use.placements[0].shape)
            columns = part.rows()
            precision = columns.dtype
            if dtype.is_complex:
                columns = torch.view_as_complex(columns.view(*shape, 2))
            rows.append(columns.view(shape).to(dtype))
    found: dict[int, list[Tensor]] = {}
    if results:
        for k in range(m):
            with hooks_silenced(parameters.values()):
                gradients = torch.autograd.grad(
                    results,
                    list(parameters.values()),
                    [row[k] for row in rows],
                    retain_graph=True,
                    allow_unused=True,
                )
            for (parameter, tensor), gradient in zip(parameters.items(), gradients, strict=True):
                found.setdefault(parameter, []).append(
                    to_columns(torch.zeros_like(tensor) if gradient is None else gradient)
                )
    return {parameter: torch.stack(flats).to(precision) for parameter, flats in found.items()}
