"""Rules for operations that have no kernel in double precision, and Functions that users write."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lightning_jd.engines import Objectives, Tape
from lightning_jd.engines.tape.contributions import _ragged_product
from lightning_jd.engines.tape.contributions._pieces import SMALLEST
from tests.engines.oracle import TOLERANCE, check_tape
from tests.engines.zoo import default_dtype
from tests.engines.zoo._registry import named, per_instance


class Forecaster(nn.Module):
    """An encoder whose last state is the first of the decoder; all outputs matter."""

    def __init__(self, batch_first: bool, bidirectional: bool, layers: int) -> None:
        super().__init__()
        options: dict[str, Any] = {"batch_first": batch_first, "bidirectional": bidirectional}
        self.encoder = nn.LSTM(3, 4, layers, **options)
        self.decoder = nn.LSTM(2, 4, layers, **options)
        self.head = nn.Linear(8 if bidirectional else 4, 1)
        self.batch_first = batch_first

    def forward(self, past: Tensor, future: Tensor) -> Tensor:
        if not self.batch_first:
            past, future = past.transpose(0, 1), future.transpose(0, 1)
        _, state = self.encoder(past)
        output, (h, c) = self.decoder(future, state)
        output = self.head(output if self.batch_first else output.transpose(0, 1))
        return output.square().mean(dim=(1, 2)) + h.square().sum(dim=(0, 2)) + c.sum(dim=(0, 2))


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("memory", ["fast", "low"])
def test_fused_recurrent_layers(
    memory: str, batch_first: bool, bidirectional: bool, layers: int
) -> None:
    torch.manual_seed(0)
    model = Forecaster(batch_first, bidirectional, layers)
    losses = model(torch.randn(6, 5, 3), torch.randn(6, 4, 2))
    tape = check_tape(losses, list(model.named_parameters()), memory, 1e-4)
    assert tape.paths["encoder.weight_hh_l0"] == "rule MkldnnRnnLayerBackward0"


def test_only_the_last_state_matters() -> None:
    torch.manual_seed(0)
    model = nn.LSTM(3, 4)
    _, (h, _) = model(torch.randn(5, 6, 3))
    tape = check_tape(h[-1].square().sum(dim=1), list(model.named_parameters()), "fast", 1e-4)
    assert set(tape.paths.values()) == {"rule MkldnnRnnLayerBackward0"}


@pytest.mark.skipif(not hasattr(nn.functional, "grouped_mm"), reason="needs a later torch")
@pytest.mark.skipif(not hasattr(nn.functional, "grouped_mm"), reason="newer than this torch")
@pytest.mark.parametrize("memory", ["fast", "low"])
def test_experts_in_one_product(memory: str) -> None:
    torch.manual_seed(0)
    weights = nn.Parameter(torch.randn(3, 16, 8).bfloat16().float())
    x, owner = torch.randn(12, 8), torch.randint(4, (12,))
    ends = torch.tensor([3, 3, 12], dtype=torch.int32)  # the second expert has no token
    y = nn.functional.grouped_mm(x, weights.transpose(1, 2), offs=ends)
    losses = torch.zeros(4).index_add(0, owner, y.square().sum(dim=1))
    tape = check_tape(losses, [("weights", weights)], memory, 1e-4)
    assert tape.paths == {"weights": "rule GroupedMmBackward0"}


class Scaled(torch.autograd.Function):
    """Arguments that are no tensors, before, between and after those that are."""

    @staticmethod
    def forward(
        ctx: Any, factor: float, x: Tensor, name: str, weight: Tensor, constant: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, weight)
        ctx.factor = factor
        return factor * (x @ weight), 2 * x + constant.sum()

    @staticmethod
    def backward(ctx: Any, D: Tensor, unused: Tensor) -> tuple[Any, ...]:
        assert isinstance(unused, Tensor)  # autograd gives zeros, not None
        assert ctx.needs_input_grad == (False, True, False, True, False)
        x, weight = ctx.saved_tensors
        return None, ctx.factor * D @ weight.T + 2 * unused, None, ctx.factor * x.T @ D, None


@pytest.mark.parametrize("scale", [1.0, 1e-5])
@pytest.mark.parametrize("memory", ["fast", "low"])
def test_functions_with_other_arguments_and_unused_outputs(memory: str, scale: float) -> None:
    inner = nn.Linear(3, 4, dtype=torch.float64)
    weight = nn.Parameter(torch.randn(4, 2, dtype=torch.float64))
    x, ones = inner(torch.randn(5, 3, dtype=torch.float64)), torch.ones(2, dtype=torch.float64)
    y, _ = Scaled.apply(3.0, x, "name", weight, ones)
    named = [("weight", weight), *inner.named_parameters(prefix="inner")]
    tape = check_tape(scale * y.square().sum(dim=1), named, memory, 1e-10)
    assert tape.paths["weight"] == "local ScaledBackward"


def test_every_instance_norm_is_one_pass() -> None:
    norm = nn.InstanceNorm2d(4, affine=True, dtype=torch.float64)
    x = torch.randn(5, 4, 3, 3, dtype=torch.float64)
    losses = (norm(x) * torch.randn(4, 3, 3, dtype=torch.float64)).exp().sum(dim=(1, 2, 3))
    tape = check_tape(losses, list(norm.named_parameters()), "fast", 1e-10)
    assert set(tape.paths.values()) == {"rule RepeatBackward0"}


def test_the_adjoint_of_an_ordinary_differential_equation() -> None:
    torchdiffeq = pytest.importorskip("torchdiffeq")

    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4, dtype=torch.float64)

        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            return torch.tanh(self.layer(y))

    field, x = Field(), torch.randn(6, 4, dtype=torch.float64)
    times = torch.linspace(0, 1, 5, dtype=torch.float64)
    end = torchdiffeq.odeint_adjoint(field, x, times, method="rk4")[-1]
    tape = Tape(Objectives.of(end.square().sum(dim=1)), list(field.named_parameters()))
    check_tape(end.square().sum(dim=1), list(field.named_parameters()), "fast", 1e-9)
    assert tape.gramian().shape == (6, 6)


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("width", [3, 200])  # products of gradients, and kernels
@pytest.mark.parametrize("memory", ["fast", "low"])
def test_instances_of_many_sizes(memory: str, width: int, is_sorted: bool, is_tied: bool) -> None:
    torch.manual_seed(0)
    owner = torch.randint(5, (40,))
    owner[:7] = -1  # slices that no loss depends on
    owner = owner.sort().values if is_sorted else owner[torch.randperm(40)]
    inner = nn.Linear(width, width, dtype=torch.float64)
    outer = inner if is_tied else nn.Linear(width, width, bias=False, dtype=torch.float64)
    h = torch.tanh(inner(torch.randn(40, width, dtype=torch.float64)))
    each = outer(h).square().mean(dim=1)
    losses = torch.zeros(6, dtype=torch.float64).index_add(0, owner % 6, each)[:5]
    named = list(nn.ModuleList([inner, outer]).named_parameters())
    tape = check_tape(losses, named, memory, 1e-10)
    assert all(path.startswith("rule") for path in tape.paths.values())
    blocks = Tape(Objectives.of(losses), named).jacobian()
    torch.testing.assert_close(blocks @ blocks.T, tape.gramian())


@pytest.mark.parametrize("memory", ["fast", "low"])
def test_ragged_instances_in_pieces(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ragged_product, "pieces", lambda _: SMALLEST._replace(temporary=1000))
    torch.manual_seed(0)
    sizes = torch.randint(10, 30, (8,))
    owner = torch.repeat_interleave(torch.arange(8), sizes)
    model = nn.Linear(6, 5).double()
    y = model(torch.randn(len(owner), 6).double())
    losses = torch.zeros(8).double().index_add(0, owner, y.square().sum(dim=1))
    tape = check_tape(losses, list(model.named_parameters()), memory, 1e-10, check="off")
    assert set(tape.paths.values()) == {"rule AddmmBackward0"}


# --- Layers with random hyperparameters on random shapes


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
