"""Graphs that need more than a line: mixed precision, compilation, reentrant checkpoints."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lightning_jd.core import backward
from lightning_jd.engines import Objectives, Tape, jacobian
from lightning_jd.errors import GraphError, ShapeError
from tests.engines.oracle import TOLERANCE, check_tape, jacobian_blocks
from tests.engines.zoo._registry import named, per_instance

#: bfloat16 has 8 significant bits, and the tape sums in another order than autograd does.
BFLOAT16 = 3e-2


def small_cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    )


def small_transformer() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 8), nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "cnn": (small_cnn, (5, 2, 4, 4)),
    "transformer": (small_transformer, (5, 3, 4)),
}


@pytest.mark.parametrize("memory", ["fast", "low"])
@pytest.mark.parametrize("name", MODELS)
def test_autocast_to_bfloat16(name: str, memory: str) -> None:
    torch.manual_seed(0)
    build, shape = MODELS[name]
    model = build()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = per_instance(model(torch.randn(shape))).float()
    check_tape(losses, named(model), memory, BFLOAT16)


@pytest.mark.parametrize("memory", ["fast", "low"])
def test_autocast_may_still_be_active_when_the_gramian_is_computed(memory: str) -> None:
    torch.manual_seed(0)
    model = small_cnn()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = per_instance(model(torch.randn(5, 2, 4, 4))).float()
        expected = jacobian_blocks(losses, named(model))
        tape = Tape(Objectives.of(losses), named(model), memory=memory)
        G = tape.gramian()
        assert G.dtype == torch.float32
        tape.gradients(torch.ones(5))
    J = torch.cat([block for block in expected if block is not None], dim=1)
    torch.testing.assert_close(G, J @ J.T, rtol=BFLOAT16, atol=BFLOAT16 * float(G.max()))


@pytest.mark.parametrize("memory", ["fast", "low"])
def test_a_model_in_bfloat16(memory: str) -> None:
    torch.manual_seed(0)
    model = small_cnn().to(torch.bfloat16)
    losses = per_instance(model(torch.randn(5, 2, 4, 4, dtype=torch.bfloat16))).float()
    tape = check_tape(losses, named(model), memory, BFLOAT16)
    assert set(tape.paths)


def check_compiled(model: nn.Module, x: Tensor, backend: str) -> None:
    torch.compiler.reset()
    compiled = torch.compile(model, backend=backend)
    for memory in ("fast", "low"):
        check_tape(per_instance(compiled(x)), named(model), memory, TOLERANCE[torch.float32])
    J = jacobian(per_instance(compiled(x)), model)
    torch.testing.assert_close(J, jacobian(per_instance(model(x)), model, chunk=1))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_models_compiled_without_code_generation(name: str) -> None:
    torch.manual_seed(0)
    build, shape = MODELS[name]
    check_compiled(build(), torch.randn(shape), "aot_eager")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, about its own code
def test_a_model_compiled_by_inductor() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.LayerNorm(6), nn.Linear(6, 3))
    check_compiled(model, torch.randn(5, 4), "inductor")


def reentrant(model: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(model, x.requires_grad_(True), use_reentrant=True)


def test_reentrant_checkpoints_raise_instead_of_hiding_parameters() -> None:
    model, head = nn.Linear(4, 4), nn.Linear(4, 2)
    h = reentrant(model, torch.randn(3, 4))
    for losses in (per_instance(h), per_instance(head(h))):
        for aggregator in ("mean", "graddrop"):
            with pytest.raises(GraphError, match=r"use_reentrant=False"):
                backward(losses, nn.ModuleList([model, head]), aggregator)


def test_an_empty_batch_is_a_clear_error() -> None:
    model = nn.Linear(4, 1)
    with pytest.raises(
        ShapeError, match=r"at least one loss, got shape \(0,\)\. Skip empty batches"
    ):
        backward(model(torch.randn(0, 4)).squeeze(1), model, "mean")
