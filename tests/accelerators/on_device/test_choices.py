"""Variants are measured when the device is done, once, and pieces are larger than on a CPU."""

import torch
from torch import Tensor

from lightning_jd.engines.tape.contributions._base import products
from lightning_jd.engines.tape.contributions._fastest import fastest
from lightning_jd.engines.tape.contributions._pieces import pieces
from tests.pretended import DEVICE, host, operations, synchronisations


def test_a_measurement_waits_for_the_device() -> None:
    x = torch.ones(3, 3, device=DEVICE)

    def squared() -> list[Tensor | None]:
        return [None, x @ x]

    with synchronisations() as found:
        fastest("a key of this test", {"a": squared, "b": squared})
    assert {each.kind for each in found} == {"synchronize"}
    assert len(found) >= 2 * 2  # each variant when it is warm, and when it is done
    with synchronisations() as found:
        fastest("a key of this test", {"a": squared, "b": squared})
    assert found == []


def test_nothing_is_measured_where_results_must_be_the_same_in_every_run() -> None:
    def measured() -> None:
        raise AssertionError("a variant was run")

    torch.use_deterministic_algorithms(True)
    try:
        assert fastest("another key", {"first": measured, "second": measured}) == "first"
    finally:
        torch.use_deterministic_algorithms(False)


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
