"""Pieces are larger than on a CPU."""

import torch

from lightning_jd.engines.tape.contributions._base import products
from lightning_jd.engines.tape.contributions._pieces import pieces
from tests.pretended import DEVICE, host, operations


def test_pieces_depend_on_the_device() -> None:
    here, there = pieces(torch.ones(1)), pieces(torch.ones(1, device=DEVICE))
    assert all(a < b for a, b in zip(here[:3], there[:3], strict=True))
    assert there.blocks < here.blocks


def test_few_long_rows_are_multiplied_in_few_kernels() -> None:
    for columns in (1 << 14, 100_000, 1 << 17):
        rows = torch.randn(5, columns)
        expected = rows.double() @ rows.double().T
        with operations() as found:
            G = products(rows.to(DEVICE))
        torch.testing.assert_close(host(G).double(), expected, rtol=1e-5, atol=1e-5 * columns)
        assert len(found) <= 6, [each.name for each in found]
