"""A plain loop over tasks, where it is faster: chosen by size, exact in any case."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_jd.engines import Objectives, Tape
from lightning_jd.engines.tape.run import Loop
from lightning_jd.errors import GraphError
from tests.engines.oracle import (
    assert_gradients,
    assert_gramian,
    jacobian_blocks,
)


class Heads(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.trunk = nn.Linear(5, 4, dtype=dtype)
        self.heads = nn.ModuleList(nn.Linear(4, 1, dtype=dtype) for _ in range(3))
        self.unused = nn.Linear(2, 2, dtype=dtype)

    def forward(self, x: Tensor) -> list[Tensor]:
        z = self.trunk(x).tanh()
        return [head(z).square().mean() for head in self.heads]


@pytest.mark.parametrize("scale", [1.0, 1024.0, torch.tensor(2.0**-10, dtype=torch.float64)])
def test_the_loop_is_exact(scale: float | Tensor) -> None:
    model = Heads()
    losses, named = model(torch.randn(6, 5, dtype=torch.float64)), list(model.named_parameters())
    blocks = jacobian_blocks(losses, named)
    tape = Tape(Objectives.of(losses), named, scale=scale)
    assert_gramian(tape.gramian(), blocks, 1e-10)
    assert tape._outcome is not None
    assert isinstance(tape._outcome.ledger, Loop)
    weights = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    for _ in range(2):
        assert_gradients(tape.gradients(weights), weights, blocks, named, 1e-10)
    assert tape.paths["trunk.weight"] == "rows"
    assert tape.paths["unused.weight"] == "unreached"


def test_the_loop_computes_in_single_precision_where_parameters_are_half() -> None:
    model = Heads(torch.bfloat16)
    losses = model(torch.randn(6, 5, dtype=torch.bfloat16))
    tape = Tape(Objectives.of(losses), list(model.named_parameters()))
    assert tape.gramian().dtype == torch.float32
    assert tape.gradients(torch.ones(3))[0].dtype == torch.bfloat16  # type: ignore[union-attr]


def test_losses_that_reach_no_parameter_are_an_error_in_the_loop() -> None:
    model = Heads()
    losses = model(torch.randn(6, 5, dtype=torch.float64))
    with pytest.raises(GraphError, match="must depend on a parameter"):
        Tape(Objectives.of(losses), [("p", torch.zeros(3, requires_grad=True))]).gramian()


def test_every_step_takes_the_same_way_and_gives_the_same_bits() -> None:
    model = Heads()
    named, x = list(model.named_parameters()), torch.randn(6, 5, dtype=torch.float64)
    weights = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    found = []
    for _ in range(4):
        tape = Tape(Objectives.of(model(x)), named, retain_graph=False)
        found.append([tape.gramian(), *[g for g in tape.gradients(weights) if g is not None]])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(other, found[0], strict=True))


@pytest.mark.parametrize("options", [{"memory": "low"}, {"check": "always"}])
def test_the_tape_takes_what_the_loop_does_not(options: dict[str, Any]) -> None:
    model = Heads()
    losses, named = model(torch.randn(6, 5, dtype=torch.float64)), list(model.named_parameters())
    tape = Tape(Objectives.of(losses), named, **options)
    assert_gramian(tape.gramian(), jacobian_blocks(losses, named), 1e-10)
    assert tape._outcome is not None
    assert not isinstance(tape._outcome.ledger, Loop)


def test_gradients_of_tables_are_sparse_where_those_of_autograd_are() -> None:
    table, layer = nn.Embedding(5, 3, sparse=True), nn.Linear(3, 1)
    rows = [layer(table(torch.tensor([0, 2]))).sum(), table(torch.tensor([2, 4])).square().sum()]
    named = [("table", table.weight), ("layer", layer.weight)]
    tape = Tape(Objectives.of(rows), named)
    found, other = tape.gradients(torch.ones(2))
    (expected,) = torch.autograd.grad(sum(rows), [table.weight])
    assert found is not None
    assert other is not None
    assert found.is_sparse
    assert not other.is_sparse
    assert_close(found.to_dense(), expected.to_dense())


def test_the_scale_is_taken_out_before_half_precision_could_lose_anything() -> None:
    """Gradients of 1e-9 are nothing in float16, but the scale is there to make them something."""
    shared, own = (torch.ones(3, dtype=torch.float16, requires_grad=True) for _ in range(2))
    rows = [(shared.float() * 1e-9).sum(), ((shared + own).float() * 1e-9).sum()]
    named = [("shared", shared), ("own", own)]
    tape = Tape(Objectives.of(rows), named, scale=2.0**16)
    expected = torch.tensor([[3.0, 3.0], [3.0, 6.0]])
    assert_close(tape.gramian() * 1e18, expected, rtol=2e-2, atol=0.0)


@pytest.mark.parametrize("scale", [1.0, 1024.0, torch.tensor(8.0, dtype=torch.float64)])
def test_the_loop_gives_the_gradients_of_heads_beside_the_gramian(scale: float | Tensor) -> None:
    model, twice = Heads(), torch.randn(3, dtype=torch.float64, requires_grad=True)
    losses = model(torch.randn(6, 5, dtype=torch.float64))
    losses = [losses[0] * twice[0], losses[1], losses[2] + twice.square().sum()]
    trunk = [(f"trunk.{name}", tensor) for name, tensor in model.trunk.named_parameters()]
    others = [*model.heads.parameters(), *model.unused.parameters(), twice]
    expected = torch.autograd.grad(sum(losses), others, retain_graph=True, allow_unused=True)
    blocks = jacobian_blocks(losses, trunk)
    tape = Tape(Objectives.of(losses), trunk, scale=scale)
    found = tape.gradients_beside(others)
    assert found is not None
    assert [g is None for g in found] == [g is None for g in expected]
    assert_close([g for g in found if g is not None], [g for g in expected if g is not None])
    assert_gramian(tape.gramian(), blocks, 1e-10)


def test_what_is_no_loop_gives_no_gradients_beside() -> None:
    x = torch.ones(2, requires_grad=True)
    assert Tape(Objectives.of(x * x), [("x", x)]).gradients_beside([x]) is None
