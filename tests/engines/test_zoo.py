"""Every graph of the zoo: Gramian, gradients and Jacobian of the tape against plain autograd."""

import pytest
import torch

from tests.engines.oracle import TOLERANCE, check_freed, check_tape, scalars
from tests.engines.zoo import CASES, FEW, default_dtype


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(torch.float64, id="double"),
        pytest.param(torch.float32, id="single", marks=pytest.mark.slow),
    ],
)
def test_the_tape_is_exact_on(name: str, dtype: torch.dtype) -> None:
    """In both memory modes: the Jacobian too in double precision, a freed graph too in single."""
    double = dtype is torch.float64
    for memory in ("fast", "low"):
        with default_dtype(dtype):
            torch.manual_seed(0)
            losses, named = CASES[name]()
            check_tape(losses, named, memory, TOLERANCE[dtype], rows=double and memory == "fast")
            if not double:
                torch.manual_seed(0)
                check_freed(*CASES[name](), memory, TOLERANCE[dtype])


@pytest.mark.parametrize("name", FEW)
def test_the_tape_is_exact_for_dense_tasks_on(name: str) -> None:
    """Three tasks, each a combination of all losses: no graph is made of independent rows."""
    torch.manual_seed(0)
    with default_dtype(torch.float64):
        losses, named = CASES[name]()
        stacked = torch.stack(scalars(losses))
        mixed = list((torch.randn(3, len(stacked)) @ stacked).unbind())
        check_tape(mixed, named, "fast", TOLERANCE[torch.float64])
