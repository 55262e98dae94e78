"""Layers with random hyperparameters on random shapes."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.engines.oracle import TOLERANCE, check_tape
from tests.engines.zoo import default_dtype
from tests.engines.zoo._registry import named, per_instance

SETTINGS = settings(max_examples=40, deadline=None, derandomize=True)


def check(build: object, batch: int, shape: tuple[int, ...], seed: int) -> None:
    """The layer behind and in front of others, so that its input needs a gradient."""
    torch.manual_seed(seed)
    with default_dtype(torch.float64):
        layer = build()
        front = nn.Linear(shape[-1], shape[-1])
        losses = per_instance(layer(front(torch.randn(batch, *shape))).tanh())
        check_tape(losses, named(front, layer), "fast", TOLERANCE[torch.float64])


@SETTINGS
@given(
    data=st.data(), batch=st.integers(1, 6), dimensions=st.integers(1, 3), seed=st.integers(0, 99)
)
def test_convolutions(data: st.DataObject, batch: int, dimensions: int, seed: int) -> None:
    each = st.tuples(*[st.integers(1, 3)] * dimensions)
    groups, transposed = data.draw(st.integers(1, 3)), data.draw(st.booleans())
    kernel, stride, dilation = (data.draw(each) for _ in range(3))
    inputs, outputs = groups * data.draw(st.integers(1, 2)), groups * data.draw(st.integers(1, 2))
    bias = data.draw(st.booleans())
    # Long enough for one position of the dilated kernel, plus something that may be cut off.
    sizes = [
        d * (k - 1) + 1 + data.draw(st.integers(0, 3))
        for k, d in zip(kernel, dilation, strict=True)
    ]
    kind = nn.ConvTranspose1d if transposed else nn.Conv1d
    kinds = {1: kind, 2: nn.ConvTranspose2d if transposed else nn.Conv2d}
    kind = kinds.get(dimensions, nn.ConvTranspose3d if transposed else nn.Conv3d)
    padding = tuple(
        data.draw(st.integers(0, d * (k - 1) // 2)) for k, d in zip(kernel, dilation, strict=True)
    )

    def build() -> nn.Module:
        return kind(
            inputs,
            outputs,
            kernel,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            bias=bias,
        )

    check(build, batch, (inputs, *sizes), seed)


@SETTINGS
@given(
    kind=st.sampled_from(["layer", "group", "instance", "rms", "batch_train", "batch_eval"]),
    batch=st.integers(2, 6),
    channels=st.sampled_from([2, 4, 6]),
    length=st.integers(2, 4),
    seed=st.integers(0, 99),
)
def test_norms(kind: str, batch: int, channels: int, length: int, seed: int) -> None:
    builders = {
        "layer": lambda: nn.LayerNorm(length),
        "group": lambda: nn.GroupNorm(2, channels),
        "instance": lambda: nn.InstanceNorm1d(channels, affine=True),
        "rms": lambda: nn.RMSNorm((channels, length)),
        "batch_train": lambda: nn.BatchNorm1d(channels),
        "batch_eval": lambda: nn.BatchNorm1d(channels).eval(),
    }
    check(builders[kind], batch, (channels, length), seed)
