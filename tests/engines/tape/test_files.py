"""How many files of the package a `backward` runs through: what a reader with a debugger meets."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import lightning_jd
from lightning_jd.engines.tape.graph import SHOWS_HOOKS
from lightning_jd.engines.tape.plan import memory

PACKAGE = Path(lightning_jd.__file__).parent
#: The methods and their linear algebra: another room for each aggregator.
OTHERS = ("aggregators", "linalg")


def files_entered(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> set[str]:
    losses = cross_entropy(model(x), y, reduction="none")
    found: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            found.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        lightning_jd.backward(losses, model, "upgrad")
    finally:
        sys.setprofile(None)
    paths = [Path(name).relative_to(PACKAGE) for name in found if name.startswith(str(PACKAGE))]
    return {str(path) for path in paths if path.parts[0] not in OTHERS}


@pytest.mark.skipif(not SHOWS_HOOKS, reason="before torch 2.13, saved tensors are read in a pass")
def test_a_step_enters_few_files() -> None:
    """The figures may only become smaller."""
    torch.manual_seed(0)
    # hooks of earlier tests are told from those of this one
    files_entered(nn.Linear(2, 2), torch.randn(3, 2), torch.zeros(3, dtype=torch.long))
    memory.forget()
    layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(8 * 16, 4))
    x, y = torch.randn(16, 3, 8, 8), torch.randint(4, (16,))
    entered = [files_entered(model, x, y) for _ in range(6)]
    counts = [len(files) for files in entered]
    assert counts[0] <= 50, sorted(entered[0])
    assert max(counts[1:3]) <= 40, sorted(entered[1])
    assert counts[-2] == counts[-1] <= 22, sorted(entered[-1])
