"""Every graph of the zoo: Gramian and gradients of the tape against rows by plain autograd."""

import pytest
import torch

from tests.engines.oracle import TOLERANCE, check_tape, scalars
from tests.engines.zoo import CASES, default_dtype


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "single"])
def test_the_tape_is_exact_on(name: str, dtype: torch.dtype) -> None:
    for memory in ("fast", "low"):
        torch.manual_seed(0)
        with default_dtype(dtype):
            losses, named = CASES[name]()
            check_tape(losses, named, memory, TOLERANCE[dtype])


@pytest.mark.parametrize("name", CASES)
def test_the_tape_is_exact_for_dense_tasks_on(name: str) -> None:
    """Three tasks, each a combination of all losses: no graph is made of independent rows."""
    torch.manual_seed(0)
    with default_dtype(torch.float64):
        losses, named = CASES[name]()
        stacked = torch.stack(scalars(losses))
        mixed = list((torch.randn(3, len(stacked)) @ stacked).unbind())
        check_tape(mixed, named, "fast", TOLERANCE[torch.float64])
