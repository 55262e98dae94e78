"""The fused layer of ``nn.LSTM`` on a CPU, whose kernel keeps the gradients of its gates to itself.

They are computed once more, from what the layer has saved: all states are known, so that only the
way back goes step by step.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lightning_jd.engines.tape.contributions import Contribution, OuterProduct, Rows
from lightning_jd.engines.tape.owners import Arrangement, Owners
from lightning_jd.engines.tape.rules._registry import Site, register_rule, require

_NAME = "MkldnnRnnLayerBackward0"
_LSTM = 2  # of the modes of torch: rectifier, tanh, LSTM, GRU
_SAVED = ("input", "hx_", "cx_", "weight0", "weight1", "weight2", "weight3", "result0")


class _Layer(NamedTuple):
    """What the four weights of a layer are differentiated from.

    Attributes:
        inputs: Shape (time, batch, features).
        states: The state before each step, shape (time, batch, hidden).
        gates: The gradient of the losses at the gates, shape (time, batch, 4 hidden).
    """

    inputs: Tensor
    states: Tensor
    gates: Tensor


@register_rule(_NAME, 1, saved=_SAVED, outputs=3)
@register_rule(_NAME, 2, saved=_SAVED, outputs=3)
def weight(site: Site) -> Contribution:
    """Inputs (first weight), or states, meet gradients of the gates."""
    layer, samples = _layer(site), _samples(site)
    A = samples.split(layer.inputs if site.slots == (1,) else layer.states).flatten(1, 2)
    D = samples.split_cotangent(layer.gates).flatten(1, 2)
    return OuterProduct(A, D, site.placements[0], cotangents_first=True)


@register_rule(_NAME, 3, saved=_SAVED, outputs=3)
@register_rule(_NAME, 4, saved=_SAVED, outputs=3)
def bias(site: Site) -> Contribution:
    """The sum of the gradients of the gates over time."""
    gates = _samples(site).split_cotangent(_layer(site).gates)
    return Rows(gates.sum(dim=(1, 2)), site.placements[0])


def _samples(site: Site) -> Arrangement:
    """Who owns which sample, along axis 1 of (time, batch, features)."""
    return Arrangement(Owners(1, site.owners.ids), site.m)


def _layer(site: Site) -> _Layer:
    require(site.saved("mode") == _LSTM and site.saved("has_biases"))
    require(not site.saved("batch_sizes"))
    # steps depend on each other, so that owners must be samples: of the outputs, or of last states
    require(site.owners.axis == (0 if site.cotangents[0] is None else 1))
    return site.once(_differentiated)


def _differentiated(site: Site) -> _Layer:
    x, hx, cx, W, U, b, c, outputs = (site.saved(name).to(site.dtype) for name in _SAVED)
    D, dh, dc = (None if D is None else D.to(site.dtype) for D in site.cotangents)
    D = torch.zeros_like(outputs) if D is None else D
    if site.saved("reverse"):
        x, outputs, D = x.flip(0), outputs.flip(0), D.flip(0)
    states = torch.cat([hx.unsqueeze(0), outputs[:-1]])
    T, batch, hidden = outputs.shape
    gates = (x @ W.T + states @ U.T + (b + c)).view(T, batch, 4, hidden)
    i, f, o = gates[:, :, [0, 1, 3]].sigmoid().unbind(2)
    g = gates[:, :, 2].tanh()
    cells = [cx]
    for added, kept in zip(i * g, f, strict=True):
        cells.append(torch.addcmul(added, kept, cells[-1]))
    before, after = torch.stack(cells[:-1]), torch.stack(cells[1:]).tanh()
    # derivatives of the gates, first by the cell (input, forget, cell) and last by the output
    slopes = [g * i * (1 - i), before * f * (1 - f), i * (1 - g * g), after * o * (1 - o)]
    slope = torch.stack(slopes, dim=2)
    through = o * (1 - after * after)
    found = torch.empty_like(slope)
    dh = torch.zeros_like(hx) if dh is None else dh
    dc = torch.zeros_like(cx) if dc is None else dc
    for t in range(T - 1, -1, -1):
        dh = dh + D[t]
        dc = torch.addcmul(dc, dh, through[t])
        torch.mul(slope[t, :, :3], dc.unsqueeze(1), out=found[t, :, :3])
        torch.mul(slope[t, :, 3], dh, out=found[t, :, 3])
        dc = dc * f[t]
        dh = found[t].view(batch, -1) @ U
    return _Layer(x, states, found.view(T, batch, -1))
