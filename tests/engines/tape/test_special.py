"""Graphs that need more than a line: mixed precision, compilation, reentrant checkpoints."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lightning_jd import backward
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


# --- Parameters and tensors of other kinds: complex, sparse, nested


class Spectrum(nn.Module):
    """Complex weights as in neural operators: a product, a shift, a norm, and a complex result."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, dtype=torch.complex128))
        self.shift = nn.Parameter(torch.randn(3, dtype=torch.complex128))
        self.modes = nn.Parameter(torch.randn(2, 3, 3, dtype=torch.complex128))
        self.scale = nn.Parameter(torch.randn(3, dtype=torch.float64))
        self.polar = nn.Parameter(torch.randn(2, dtype=torch.complex128))

    def forward(self, x: Tensor) -> Tensor:
        z = torch.fft.fft(x.to(torch.complex128), dim=1) @ self.weight.conj() + self.shift
        z = torch.einsum("bi,gio->bgo", z * self.scale, self.modes)
        return torch.view_as_real(z).square().sum(dim=(1, 2, 3)) * self.polar.abs().prod()


def rows(losses: Tensor, model: nn.Module) -> Tensor:
    """The Jacobian by the real and imaginary parts."""
    found = []
    for loss in losses:
        gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        parts = [torch.view_as_real(g.resolve_conj()) if g.is_complex() else g for g in gradients]
        found.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(found)


@pytest.mark.parametrize("memory", ["fast", "low"])
def test_complex_parameters_have_real_inner_products(memory: str) -> None:
    model = Spectrum()
    losses = model(torch.randn(6, 4, dtype=torch.float64))
    J = rows(losses, model)
    tape = Tape(Objectives.of(losses), list(model.named_parameters()), memory=memory, check="raise")
    torch.testing.assert_close(tape.gramian(), J @ J.T)
    torch.testing.assert_close(tape.jacobian(), J)
    torch.testing.assert_close(jacobian(losses, model), J)


@pytest.mark.parametrize("kind", ["instances", "tasks"])
@pytest.mark.parametrize("aggregator", ["mean", "graddrop"])
def test_complex_parameters_get_complex_gradients(kind: str, aggregator: str) -> None:
    model, x = Spectrum(), torch.randn(6, 4, dtype=torch.float64)
    losses = model(x) if kind == "instances" else {"a": model(x).mean(), "b": model(x)[0]}
    report = backward(losses, model, aggregator)
    assert report.gramian.dtype == torch.float64
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.dtype == parameter.dtype
    if aggregator == "mean":
        values = losses if isinstance(losses, Tensor) else torch.stack(list(losses.values()))
        plain = model(x).mean() if kind == "instances" else (model(x).mean() + model(x)[0]) / 2
        assert torch.allclose(values.mean(), plain)
        expected = torch.autograd.grad(plain, list(model.parameters()))
        torch.testing.assert_close([p.grad for p in model.parameters()], list(expected))


def test_sparse_embeddings_get_sparse_gradients() -> None:
    table, head = nn.Embedding(10, 3, sparse=True), nn.Linear(3, 1)
    model = nn.ModuleList([table, head])
    optimizers = [torch.optim.SparseAdam(table.parameters()), torch.optim.SGD(head.parameters())]
    index = torch.randint(10, (5, 2))
    for _ in range(2):
        for optimizer in optimizers:
            optimizer.zero_grad()
        backward(head(table(index)).square().mean(dim=(1, 2)), model, "mean")
        expected = torch.autograd.grad(head(table(index)).square().mean(), table.weight)[0]
        assert table.weight.grad is not None
        assert table.weight.grad.is_sparse
        torch.testing.assert_close(table.weight.grad.to_dense(), expected.to_dense())
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype.*")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=str)
def test_nested_tensors_are_differentiated_row_by_row(layout: torch.layout) -> None:
    inner, outer = nn.Linear(4, 3), nn.Linear(3, 2)
    model = nn.ModuleList([inner, outer])
    ragged = torch.nested.nested_tensor([torch.randn(n, 4) for n in (3, 2, 5)], layout=layout)

    def losses() -> Tensor:
        return torch.stack([outer(part).square().sum() for part in inner(ragged).unbind()])

    backward(losses(), model, "mean")
    expected = torch.autograd.grad(losses().mean(), list(model.parameters()))
    torch.testing.assert_close([p.grad for p in model.parameters()], list(expected))
