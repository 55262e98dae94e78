"""Every graph of the zoo: Gramian, gradients and Jacobian of the tape against plain autograd."""

import pytest
import torch

from tests.engines.oracle import TOLERANCE, check_freed, check_tape, scalars
from tests.engines.zoo import CASES, FEW, default_dtype


@pytest.mark.parametrize("name", CASES)
def test_the_tape_is_exact_on(name: str) -> None:
    """In both memory modes, the Jacobian too."""
    for memory in ("fast", "low"):
        torch.manual_seed(0)
        with default_dtype(torch.float64):
            losses, named = CASES[name]()
            check_tape(losses, named, memory, TOLERANCE[torch.float64], rows=memory == "fast")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_tape_is_exact_in_single_precision_and_frees_the_graph_of(name: str) -> None:
    for memory in ("fast", "low"):
        torch.manual_seed(0)
        check_freed(*CASES[name](), memory, TOLERANCE[torch.float32])


@pytest.mark.parametrize("name", FEW)
def test_the_tape_is_exact_for_dense_tasks_on(name: str) -> None:
    """Three tasks, each a combination of all losses: no graph is made of independent rows."""
    torch.manual_seed(0)
    with default_dtype(torch.float64):
        losses, named = CASES[name]()
        stacked = torch.stack(scalars(losses))
        mixed = list((torch.randn(3, len(stacked)) @ stacked).unbind())
        check_tape(mixed, named, "fast", TOLERANCE[torch.float64])
