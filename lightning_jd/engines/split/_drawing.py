"""The top of a graph as text, for the message of an error."""

from __future__ import annotations

from torch import Tensor

from lightning_jd.engines._graph import LEAF, Place
from lightning_jd.engines.split._region import inputs_of, operation, root_of, shape_at


def drawing_of(loss: Tensor, depth: int = 6, width: int = 4) -> str:
    """Draw the operations that a loss was computed by last.

    Example:
        >>> import torch
        >>> x = torch.ones(2, 3, requires_grad=True)
        >>> print(drawing_of((x.exp() * 2).mean()))
        Mean, a scalar
          Mul (2, 3)
            Exp (2, 3)
              a parameter (2, 3)
    """
    lines: list[str] = []
    _draw(root_of(loss), 0, depth, width, lines)
    return "\n".join(lines)


def _draw(place: Place, level: int, depth: int, width: int, lines: list[str]) -> None:
    shape = shape_at(place)
    name = "a parameter" if place[0].name() == LEAF else operation(place[0])
    lines.append("  " * level + name + (f" {shape}" if shape else ", a scalar"))
    inputs = inputs_of(place[0])
    if level + 1 == depth:
        return
    for child in inputs[:width]:
        _draw(child, level + 1, depth, width, lines)
    if inputs[width:]:
        lines.append("  " * (level + 1) + f"... and {len(inputs) - width} more")
