"""Random programs: layers, movements of the batch and mixtures of instances in any order.

The named cases hold what somebody thought of. These graphs are drawn: a state of several
dimensions, one of which (or two, merged) holds the instances, goes through random operations, and
every program must be exact whether or not its rows are independent.
"""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.engines.oracle import TOLERANCE, check_freed, check_tape
from tests.engines.zoo import default_dtype

SIZES = (2, 3, 4)  # few and close to one another, so that dimensions are mistaken for one another
Draw = Callable[[st.SearchStrategy], object]


class Program:
    """Applies drawn operations, and keeps the parameters that they create."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.named: list[tuple[str, Tensor]] = []

    def parameter(self, *shape: int) -> Tensor:
        reuse = [p for _, p in self.named if p.shape == shape]
        if reuse and self.draw(st.booleans()):
            return reuse[-1]
        p = nn.Parameter(torch.randn(shape) / 2)
        self.named.append((str(len(self.named)), p))
        return p

    def axis(self, x: Tensor) -> int:
        return self.draw(st.integers(0, x.ndim - 1))

    # Each of the following maps a tensor to a tensor.
    def linear(self, x: Tensor) -> Tensor:
        width = self.draw(st.sampled_from(SIZES))
        bias = self.parameter(width) if self.draw(st.booleans()) else None
        return nn.functional.linear(x, self.parameter(width, x.shape[-1]), bias)

    def matmul(self, x: Tensor) -> Tensor:
        return x @ self.parameter(x.shape[-1], self.draw(st.sampled_from(SIZES)))

    def left_product(self, x: Tensor) -> Tensor:
        return self.parameter(self.draw(st.sampled_from(SIZES)), x.shape[-2]) @ x

    def convolution(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.reshape(-1, shape[-2], shape[-1])
        width, kernel = self.draw(st.sampled_from(SIZES)), self.draw(st.integers(1, 2))
        y = nn.functional.conv1d(x, self.parameter(width, shape[-2], kernel), padding=1)
        return y.reshape(*shape[:-2], *y.shape[1:])

    def layer_norm(self, x: Tensor) -> Tensor:
        n = x.shape[-1:]
        return nn.functional.layer_norm(x, n, self.parameter(*n), self.parameter(*n))

    def scale(self, x: Tensor) -> Tensor:
        return x * self.parameter(*self._broadcast(x))

    def shift(self, x: Tensor) -> Tensor:
        return x + self.parameter(*self._broadcast(x))

    def shrink(self, x: Tensor) -> Tensor:
        return self.parameter() * x

    def _broadcast(self, x: Tensor) -> list[int]:
        kept = self.draw(st.integers(0, 2 ** min(x.ndim, 2) - 1))
        sizes = list(x.shape[-2:])
        return [size if kept >> i & 1 else 1 for i, size in enumerate(sizes)]

    def activation(self, x: Tensor) -> Tensor:
        return self.draw(st.sampled_from([torch.tanh, torch.sigmoid, torch.relu, torch.sin]))(x)

    def swap(self, x: Tensor) -> Tensor:
        return x.transpose(self.axis(x), self.axis(x))

    def merge_and_split(self, x: Tensor) -> Tensor:
        i = self.draw(st.integers(0, x.ndim - 2))
        merged = x.flatten(i, i + 1)
        if self.draw(st.booleans()):
            return merged.unflatten(i, (x.shape[i + 1], x.shape[i]))  # another order
        return merged.unflatten(i, (x.shape[i], x.shape[i + 1]))

    def merge(self, x: Tensor) -> Tensor:
        return x.flatten(0, 1) if x.ndim > 2 else x

    def add_dimension(self, x: Tensor) -> Tensor:
        return x.unsqueeze(self.axis(x)) if x.ndim < 4 else x

    def flip(self, x: Tensor) -> Tensor:
        return x.flip(self.axis(x))

    def roll(self, x: Tensor) -> Tensor:
        return x.roll(1, self.axis(x))

    def repeat(self, x: Tensor) -> Tensor:
        axis = self.axis(x)
        if x.shape[axis] > 4:
            return x
        return (
            torch.cat([x, 2 * x], axis)
            if self.draw(st.booleans())
            else x.repeat_interleave(2, axis)
        )

    def take(self, x: Tensor) -> Tensor:
        axis = self.axis(x)
        chosen = self.draw(st.lists(st.integers(0, x.shape[axis] - 1), min_size=1, max_size=4))
        return x.index_select(axis, torch.tensor(chosen))

    def pad(self, x: Tensor) -> Tensor:
        return nn.functional.pad(x, (0, 0, 1, 0)) if x.shape[-2] < 5 else x

    def mean_out(self, x: Tensor) -> Tensor:
        axis = self.axis(x)
        return x - x.mean(axis, keepdim=True)

    def softmax(self, x: Tensor) -> Tensor:
        return x.softmax(self.axis(x))

    def reduce(self, x: Tensor) -> Tensor:
        return x.sum(self.axis(x)) if x.ndim > 2 else x

    def cumulate(self, x: Tensor) -> Tensor:
        return x.cumsum(self.axis(x)) / 2

    def attend(self, x: Tensor) -> Tensor:
        return (x @ x.transpose(-1, -2)).softmax(-1) @ x

    def residual(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return x + y if x.shape == y.shape else y

    def inplace(self, x: Tensor) -> Tensor:
        return (x * 1).mul_(2).tanh_()


#: Half of the operations have parameters.
WITH = [
    "linear",
    "matmul",
    "left_product",
    "convolution",
    "layer_norm",
    "scale",
    "shift",
    "shrink",
    "residual",
]
WITHOUT = [
    name
    for name, member in vars(Program).items()
    if callable(member) and not name.startswith("_") and name not in [*WITH, "parameter", "axis"]
]


def random_losses(draw: Draw, x: Tensor) -> Tensor | list[Tensor]:
    """Instances along some dimension, or along two of them, or tasks."""
    x = x.movedim(draw(st.integers(0, x.ndim - 1)), 0).square()
    shape = draw(st.sampled_from(["instances", "instances_tasks", "tasks"]))
    if shape == "instances_tasks":
        return x.flatten(2).sum(2) if x.ndim > 2 else x
    each = x.flatten(1).sum(1)
    return each if shape == "instances" else list(each.unbind())


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True)
@given(data=st.data())
def test_random_programs(data: st.DataObject) -> None:
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    with default_dtype(torch.float64):
        program = Program(data.draw)
        x = torch.randn(data.draw(st.lists(st.sampled_from(SIZES), min_size=2, max_size=3)))
        names = st.one_of(st.sampled_from(WITH), st.sampled_from(WITHOUT))
        for step in [data.draw(st.sampled_from(WITH)), *data.draw(st.lists(names, max_size=7))]:
            x = getattr(program, step)(x)
        losses, tolerance = random_losses(data.draw, x), TOLERANCE[torch.float64]
        check = data.draw(st.sampled_from([check_tape, check_freed]))
        check(losses, program.named, data.draw(st.sampled_from(["fast", "low"])), tolerance)
