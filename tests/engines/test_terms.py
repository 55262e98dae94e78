"""Losses of which only the place in the graph is known are differentiated like any others."""

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.testing import assert_close

from lightning_jd.engines import Objectives, gramian, jacobian, leaves_reached, tasks_reaching
from lightning_jd.engines._objectives import Term

FACTORS = torch.tensor([1.0, -0.5, 3.0], dtype=torch.float64)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 6), nn.Tanh())
        self.heads = nn.ModuleList([nn.Linear(6, 3), nn.Linear(6, 2)])

    def losses(self, x: Tensor) -> list[Tensor]:
        h = self.trunk(x)
        first, second = (head(h) for head in self.heads)
        return [first.square().mean(), second.exp().sum(), h.norm()]


@pytest.fixture
def model() -> TwoHeads:
    return TwoHeads().double()


def both(model: TwoHeads, places: str) -> tuple[Objectives, list[Tensor]]:
    """The same losses as terms, or some of them, and as tensors."""
    losses = model.losses(torch.randn(4, 5, dtype=torch.float64))
    terms = tuple(
        Term(get_gradient_edge(loss), factor) if places == "all" or i == 1 else loss * factor
        for i, (loss, factor) in enumerate(zip(losses, FACTORS, strict=True))
    )
    total = torch.stack(losses) @ FACTORS
    split = Objectives(("a", "b", "c"), "tasks", terms, total)
    return split, [loss * factor for loss, factor in zip(losses, FACTORS, strict=True)]


@pytest.mark.parametrize("places", ["all", "some"])
def test_jacobian_and_gramian(model: TwoHeads, places: str) -> None:
    split, losses = both(model, places)
    J = jacobian(losses, model)
    assert_close(jacobian(split, model), J)
    assert_close(jacobian(split, model, chunk=1), J)
    assert_close(jacobian(split, model, chunk=2), J)
    for _ in range(4):  # ways are measured before one is chosen
        assert_close(gramian(split, model), J @ J.T)


def test_what_they_reach(model: TwoHeads) -> None:
    split, losses = both(model, "all")
    expected = Objectives.of(losses)
    assert leaves_reached(split) == leaves_reached(expected)
    assert tasks_reaching(split) == tasks_reaching(expected)


def test_their_values_are_those_of_the_whole_unless_known(model: TwoHeads) -> None:
    split, losses = both(model, "all")
    assert split.total is not None
    assert not split.has_values
    assert_close(split.values(), split.total.detach().expand(3))
    assert_close(split.shown(), split.total.detach())
    known = Objectives(split.names, "tasks", split.losses, split.total, torch.stack(losses))
    assert known.has_values
    assert_close(known.values(), torch.stack(losses))
