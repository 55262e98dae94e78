"""The Jacobian by rows: sequential, vectorised, and where vectorising fails."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from lightning_jd.engines import Objectives, jacobian
from tests.engines.oracle import jacobian_blocks
from tests.engines.zoo import CASES, FEW, default_dtype


@pytest.mark.parametrize("name", FEW)
def test_every_chunk_gives_the_same_matrix_on(name: str) -> None:
    torch.manual_seed(0)
    with default_dtype(torch.float64):
        losses, named = CASES[name]()
        blocks = jacobian_blocks(losses, named)
        expected = torch.cat(
            [
                torch.zeros(Objectives.of(losses).m, p.numel()) if block is None else block
                for (_, p), block in zip(named, blocks, strict=True)
            ],
            dim=1,
        )
        for chunk in (1, 3, None):
            assert_close(jacobian(losses, named, chunk=chunk), expected, rtol=1e-10, atol=1e-10)


def test_the_row_of_a_loss_is_zero_where_it_does_not_reach() -> None:
    first, second = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)
    x = torch.tensor([1.0, 2.0])
    losses = [first(x).sum(), second(x).sum() * 3]
    for chunk in (1, 2):
        J = jacobian(losses, [first.weight, second.weight], chunk=chunk)
        assert_close(J, torch.tensor([[1.0, 2.0, 0.0, 0.0], [0.0, 0.0, 3.0, 6.0]]))


class NotVectorisable(torch.autograd.Function):
    """A backward pass that looks at a number, which a vectorised tensor does not have."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, g: torch.Tensor) -> torch.Tensor:
        return g * 2 if float(g.sum()) != 0 else g


def test_what_cannot_be_vectorised_runs_row_by_row() -> None:
    layer = nn.Linear(2, 1)
    losses = NotVectorisable.apply(layer(torch.randn(4, 2))).squeeze(1)
    assert_close(jacobian(losses, layer, chunk=4), jacobian(losses, layer, chunk=1))


def test_an_error_of_the_graph_itself_is_raised() -> None:
    layer = nn.Linear(2, 1)
    losses = layer(torch.randn(4, 2)).square().squeeze(1)
    losses.sum().backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        jacobian(losses, layer)


def test_half_precision_is_collected_in_single_and_a_scale_saves_small_gradients() -> None:
    x = torch.ones(2, dtype=torch.bfloat16, requires_grad=True)
    assert jacobian((x * 2).float(), [x]).dtype == torch.float32
    half = torch.ones(2, dtype=torch.float16, requires_grad=True)
    losses = (half.float() * 1e-9).unbind()  # below the smallest number of float16
    assert jacobian(losses, [half]).count_nonzero() == 0
    expected = 1e-9 * torch.eye(2)
    for chunk in (1, 2):
        assert_close(
            jacobian(losses, [half], scale=2.0**20, chunk=chunk), expected, rtol=1e-2, atol=0
        )


@pytest.mark.parametrize("chunk", [1, 3])
def test_hooks_do_not_change_the_rows(chunk: int) -> None:
    layer = nn.Linear(2, 1)
    losses = layer(torch.randn(3, 2)).squeeze(1)
    expected = jacobian(losses, layer)
    handle = layer.weight.register_hook(lambda g: 100 * g)
    assert_close(jacobian(losses, layer, chunk=chunk), expected)
    losses.sum().backward()
    assert layer.weight.grad.abs().max() > 10 * expected.abs().max()  # the hook is back
    handle.remove()
