"""`bench launches` on its tiny work; nothing here is a measurement."""

from collections import Counter

import pytest
import torch
from torch import nn

from examples.lab.bench._kernels import KernelCounter, kernels_of
from examples.lab.bench.launches import CASES


def test_views_are_no_kernels_and_the_backward_pass_counts() -> None:
    x, layer = torch.ones(4, 3), nn.Linear(3, 2)
    with KernelCounter() as counter:
        layer(x).view(8).sum().backward()
    forward = {"addmm": 1, "sum": 1}
    backward = {"ones_like": 1, "mm": 1, "sum": 1}  # the seed, the weight, the bias
    assert counter.counts == Counter(forward) + Counter(backward)
    assert kernels_of(lambda: torch.ones(2, 2).t()[0].view(2)) == 1


@pytest.mark.parametrize("name", CASES)
def test_tiny_work_is_the_ordinary_graph_in_small(name: str) -> None:
    tiny, ordinary = CASES[name].tiny(), CASES[name].ordinary()
    assert len(tiny.x) == 8
    assert len(ordinary.x) == 32
    assert max(p.numel() for p in tiny.model.parameters()) <= 8 * 8 * 9
    kinds = [
        [type(module) for module in work.model.modules() if not list(module.children())]
        for work in (tiny, ordinary)
    ]
    assert kinds[0] == kinds[1]
    groups = [
        [module.groups > 1 for module in work.model.modules() if isinstance(module, nn.Conv2d)]
        for work in (tiny, ordinary)
    ]
    assert groups[0] == groups[1]
