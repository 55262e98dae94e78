"""Every graph of the zoo: Gramian and gradients of the tape against rows by plain autograd."""

import pytest
import torch

from lightning_jd.engines import Objectives, Tape
from tests.engines.oracle import TOLERANCE, check_freed, check_tape, jacobian_blocks, scalars
from tests.engines.zoo import CASES, default_dtype


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(torch.float64, id="double"),
        pytest.param(torch.float32, id="single", marks=pytest.mark.slow),
    ],
)
def test_the_tape_is_exact_on(name: str, dtype: torch.dtype) -> None:
    for memory in ("fast", "low"):
        torch.manual_seed(0)
        with default_dtype(dtype):
            losses, named = CASES[name]()
            check_tape(losses, named, memory, TOLERANCE[dtype])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_tape_is_exact_when_it_frees_the_graph_of(name: str) -> None:
    for memory in ("fast", "low"):
        torch.manual_seed(0)
        with default_dtype(torch.float64):
            losses, named = CASES[name]()
            check_freed(losses, named, memory, TOLERANCE[torch.float64])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_tape_is_exact_for_dense_tasks_on(name: str) -> None:
    """Three tasks, each a combination of all losses: no graph is made of independent rows."""
    torch.manual_seed(0)
    with default_dtype(torch.float64):
        losses, named = CASES[name]()
        stacked = torch.stack(scalars(losses))
        mixed = list((torch.randn(3, len(stacked)) @ stacked).unbind())
        check_tape(mixed, named, "fast", TOLERANCE[torch.float64])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_jacobian_of_the_tape_is_that_of_autograd_on(name: str) -> None:
    torch.manual_seed(0)
    with default_dtype(torch.float64):
        losses, named = CASES[name]()
        blocks = jacobian_blocks(losses, named)
        tape = Tape(Objectives.of(losses), named)
        tape.gramian()  # must not stand in the way
        J = tape.jacobian()
    expected = [
        J.new_zeros(len(J), p.numel()) if block is None else block
        for block, (_, p) in zip(blocks, named, strict=True)
    ]
    for (parameter, _), found, block in zip(
        named, J.split([p.numel() for _, p in named], dim=1), expected, strict=True
    ):
        torch.testing.assert_close(found, block.to(found), rtol=1e-9, atol=1e-11, msg=parameter)
    torch.testing.assert_close(tape.gramian(), J @ J.T, rtol=1e-9, atol=1e-11)
