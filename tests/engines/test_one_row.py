"""Heads of tasks: one row is held, and nothing changes but the memory."""

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_jd.engines import Objectives, Tape
from lightning_jd.engines.tape import Rows
from lightning_jd.engines.tape.contributions import OneRow
from lightning_jd.engines.tape.graph import Placement
from lightning_jd.engines.tape.run import Ledger
from tests.engines.oracle import check_tape

M, K = 5, 3


def in_full(row: Tensor) -> Tensor:
    rows = row.new_zeros(M, row.numel())
    rows[K] = row.flatten()
    return rows


def test_it_is_a_row_among_zeros() -> None:
    torch.manual_seed(0)
    row = torch.randn(1, 6, dtype=torch.float64)
    alone = OneRow(Rows(row, Placement(0, 6, (6,))), K, M)
    full = in_full(row)
    weights = torch.randn(M, dtype=torch.float64)
    assert_close(alone.gramian(), full @ full.T)
    assert_close(alone.rows(), full)
    assert_close(torch.cat(list(alone.blocks(2)), dim=1), full)
    assert_close(alone.gradients(weights)[0], weights @ full)


@pytest.mark.parametrize("memory", ["fast", "low"])
def test_heads_are_held_as_one_row_and_the_trunk_is_not(memory: str) -> None:
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(4, 6), nn.Tanh()).double()
    heads = nn.ModuleList(nn.Linear(6, 2) for _ in range(M)).double()
    named = [*trunk.named_parameters("trunk"), *heads.named_parameters("heads")]
    x = torch.randn(7, 4, dtype=torch.float64)
    losses = [head(trunk(x)).square().mean() for head in heads]
    tape = check_tape(losses, named, memory, 1e-10)
    if memory == "fast":
        assert tape._outcome is not None
        assert isinstance(tape._outcome.ledger, Ledger)
        single = [part for part in tape._outcome.ledger._kept if isinstance(part, OneRow)]
        owners = {named[part.placements[0].parameter][0] for part in single}
        assert owners == {f"heads.{k}.{what}" for k in range(M) for what in ("weight", "bias")}
    J = Tape(Objectives.of(losses), named).jacobian()  # for other processes, with all rows
    assert_close(tape.gramian(), J @ J.T)
