"""Parameters and tensors of other kinds: complex, sparse, nested."""

import pytest
import torch
from torch import Tensor, nn

from lightning_jd import backward
from lightning_jd.engines import Objectives, Tape, jacobian


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
