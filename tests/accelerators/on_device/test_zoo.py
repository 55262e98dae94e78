"""Every graph of the zoo on the device: the Gramian and the gradients of the CPU, to rounding."""

import pytest
import torch
from torch import Tensor

from lightning_jd.engines import Objectives, Tape
from tests.engines.oracle import assert_gradients, assert_gramian, jacobian_blocks
from tests.engines.zoo import CASES, default_dtype
from tests.pretended import DEVICE, host

#: All numbers are drawn from the same generator, so that both devices see the same graph.
TOLERANCE = 1e-10


@pytest.mark.parametrize("name", CASES)
def test_the_tape_is_exact_on(name: str) -> None:
    with default_dtype(torch.float64):
        check_tape_on_device(name, TOLERANCE)


def check_tape_on_device(name: str, tolerance: float) -> None:
    """Compare the tape on the device with rows on the CPU, in both memory modes."""
    for memory in ("fast", "low"):
        torch.manual_seed(0)
        expected, named = CASES[name]()
        blocks = jacobian_blocks(expected, named)
        torch.manual_seed(0)
        with torch.device(DEVICE):
            losses, placed = CASES[name]()
        tape = Tape(Objectives.of(losses), placed, memory=memory)
        G = tape.gramian()
        assert G.device == DEVICE
        assert_gramian(host(G), blocks, tolerance)
        weights = torch.randn(len(G), dtype=G.dtype)
        gradients = tape.gradients(weights.to(DEVICE))
        assert_gradients([_found(g) for g in gradients], weights, blocks, named, tolerance)


def _found(gradient: Tensor | None) -> Tensor | None:
    if gradient is None:
        return None
    assert gradient.device == DEVICE
    return host(gradient)
