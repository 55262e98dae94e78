"""Contributions against the rows that they do not form."""

from math import prod

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_jd.engines import Objectives, Tape
from lightning_jd.engines.tape import OuterProduct, Rows
from lightning_jd.engines.tape.contributions import (
    Budget,
    Contribution,
    Lookup,
    OneRow,
    merge,
    products,
)
from lightning_jd.engines.tape.contributions.convolution import (
    ConvolutionWeight,
    Geometry,
    _contribution,
    _pixel_kernel,
)
from lightning_jd.engines.tape.contributions.convolution._geometry import weight_gradient
from lightning_jd.engines.tape.graph import Placement
from lightning_jd.engines.tape.run import Ledger
from tests.engines.oracle import check_tape

#: Objectives, positions, inputs, outputs: by kernels in one block and in many, by rows that are
#: short, kept, turned, and multiplied in pieces.
SIZES = [(4, 1, 5, 3), (3, 90, 200, 300), (150, 1, 7, 5), (6, 40, 3, 4), (5, 90, 160, 140)]
SIZES += [(17, 31, 400, 400), (140, 3, 2, 9), (5, 150, 30, 700), (5, 150, 700, 30)]


def check(part: Contribution, J: Tensor, weights: Tensor, **tolerance: float) -> None:
    G = J @ J.T
    assert_close(part.gramian(), G, **tolerance)
    assert_close(part.gradients(weights)[0], weights @ J, **tolerance)
    settled = part.settle(Budget(room=10**9))
    found = sum((rows.gramian() for rows in settled.short), start=torch.zeros_like(G))
    found = found if settled.gramian is None else found + settled.gramian
    assert_close(found, G, **tolerance)
    gradients = [kept.gradients(weights)[0] for kept in [*settled.kept, *settled.short]]
    assert_close(sum(gradients), weights @ J, **tolerance)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("cotangents_first", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_outer_products(
    sizes: tuple[int, int, int, int], cotangents_first: bool, transposed: bool
) -> None:
    torch.manual_seed(0)
    m, T, i, o = sizes
    A, D = torch.randn(m, T, i).double(), torch.randn(m, T, o).double()
    rows = torch.einsum("mti,mto->mio", A, D)
    consumed = rows.transpose(1, 2) if cotangents_first else rows
    J = (consumed.transpose(1, 2) if transposed else consumed).flatten(1)
    placement = Placement(0, i * o, tuple(consumed.shape[1:]), transposed)
    part = OuterProduct(A, D, placement, cotangents_first=cotangents_first)
    check(part, J, torch.randn(m).double())


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_bias_beside_its_weight(sizes: tuple[int, int, int, int]) -> None:
    torch.manual_seed(0)
    m, T, i, o = sizes
    A, D = torch.randn(m, T, i).double(), torch.randn(m, T, o).double()
    places = Placement(0, i * o, (i, o)), Placement(1, o, (o,))
    part = OuterProduct(A, D, *places, cotangents_first=False)
    W, b = torch.einsum("mti,mto->mio", A, D).flatten(1), D.sum(dim=1)
    weights = torch.randn(m).double()
    assert_close(part.gramian(), W @ W.T + b @ b.T)
    assert_close(part.gradients(weights), [weights @ W, weights @ b])


@pytest.mark.parametrize("m", [3, 31, 32, 50, 127, 128, 200])
@pytest.mark.parametrize("n", [1, 64, 5000, 20_000])
def test_products_of_rows(m: int, n: int) -> None:
    torch.manual_seed(0)
    rows = torch.randn(m, n).double()
    assert_close(products(rows), rows @ rows.T)


def tied(
    m: int, T: int, entries: int, d: int, *, head_first: bool
) -> tuple[Contribution, Tensor, Tensor]:
    """A table that is also the last layer, its rows, and weights."""
    torch.manual_seed(0)
    A, D = torch.randn(m, T, d).double(), torch.randn(m, T, entries).double()
    C, index = torch.randn(m, T, d).double(), torch.randint(0, entries, (m, T))
    head = Placement(0, entries * d, (d, entries), transposed=True)
    parts = [
        OuterProduct(A, D, head, cotangents_first=False),
        Lookup(index, C, Placement(0, entries * d, (entries, d))),
    ]
    J = torch.einsum("mto,mti->moi", D, A)
    for k in range(m):
        J[k].index_add_(0, index[k], C[k])
    whole = merge(parts if head_first else parts[::-1])
    return whole, J.flatten(1), torch.randn(m).double()


@pytest.mark.parametrize("head_first", [True, False])
def test_a_tied_table_needs_no_rows(head_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(*_: object) -> None:
        raise AssertionError("rows were formed")

    part, J, weights = tied(4, 6, 1500, 20, head_first=head_first)
    for kind in (OuterProduct, Lookup):
        for method in ("rows", "blocks"):
            monkeypatch.setattr(kind, method, rows)
    check(part, J, weights)


@pytest.mark.parametrize("head_first", [True, False])
def test_a_small_tied_table_is_added_up_in_rows(head_first: bool) -> None:
    check(*tied(2, 50, 30, 4, head_first=head_first))


def test_a_table_comes_in_blocks_of_entries() -> None:
    index, D = torch.randint(0, 7, (3, 5)), torch.randn(3, 5, 2).double()
    part = Lookup(index, D, Placement(0, 14, (7, 2)))
    J = torch.zeros(3, 7, 2).double()
    for k in range(3):
        J[k].index_add_(0, index[k], D[k])
    for width in (2, 6, 14):
        assert_close(torch.cat(list(part.blocks(width)), dim=1), J.flatten(1))


@pytest.mark.parametrize(("stride", "size"), [(1, 1), (2, 2)])
def test_few_pixels_of_many_channels_are_one_product(
    stride: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    m, T, kernel = 3, 2, (64, 48, 3, 3)
    geometry = Geometry(kernel, (stride,) * 2, (1, 1), (1, 1), False, (0, 0), 1)
    x, D = torch.randn(m, T, 48, size, size).double(), torch.randn(m, T, 64, 1, 1).double()
    part = ConvolutionWeight(x, D, geometry, Placement(0, 64 * 48 * 9, kernel))
    weights = torch.randn(m).double()
    expected = weights @ part.rows()
    monkeypatch.setattr(_contribution, "weight_gradient", None)
    assert_close(part.gradients(weights)[0], expected)


CONVOLUTIONS = [
    Geometry((6, 4, 3, 3), (2, 1), (1, 0), (1, 2), False, (0, 0), 1),
    Geometry((6, 4, 3, 3), (1, 1), (1, 1), (1, 1), False, (0, 0), 2),
    Geometry((12, 1, 3, 3), (1, 1), (0, 0), (1, 1), False, (0, 0), 4),
    Geometry((4, 1, 3, 3), (1, 1), (1, 1), (1, 1), False, (0, 0), 4),
    Geometry((4, 3, 2, 2), (2, 2), (0, 0), (1, 1), True, (1, 1), 1),
]


@pytest.mark.parametrize("geometry", CONVOLUTIONS)
def test_every_way_to_the_rows_of_a_convolution_is_exact(geometry: Geometry) -> None:
    torch.manual_seed(0)
    m, T, size = 3, 2, prod(geometry.kernel)
    inputs = geometry.kernel[0] if geometry.transposed else geometry.kernel[1] * geometry.groups
    x = torch.randn(m, T, inputs, 9, 8).double()
    convolve = F.conv_transpose2d if geometry.transposed else F.conv2d
    options = geometry._asdict()
    del options["kernel"], options["transposed"]
    if not geometry.transposed:
        del options["output_padding"]
    weight = torch.randn(geometry.kernel).double().requires_grad_()
    outputs = convolve(x.flatten(0, 1), weight, **options)
    D = torch.randn_like(outputs).view(m, T, *outputs.shape[1:])
    losses = (outputs.view(D.shape) * D).flatten(1).sum(dim=1)
    J = torch.stack([torch.autograd.grad(loss, weight, retain_graph=True)[0] for loss in losses])
    J = J.flatten(1)
    part = ConvolutionWeight(x, D, geometry, Placement(0, size, geometry.kernel))
    is_plain = not geometry.transposed
    applicable = {
        "as groups": True,
        "depthwise": is_plain and geometry.kernel[1] == 1,
        "patches by pixel": is_plain and geometry.groups == 1,
    }
    for name in [name for name, applies in applicable.items() if applies]:
        assert_close(part._gramian_by(name), J @ J.T)
        assert_close(part._as_rows(name).rows(), J)


@pytest.mark.parametrize("chunk", [1, 1 << 20])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "dilation"),
    [
        ((4, 4), (3, 3), (1, 1), (1, 1), (1, 1)),
        ((5, 4), (3, 2), (2, 1), (1, 0), (1, 1)),
        ((6, 7), (2, 3), (1, 2), (0, 2), (2, 1)),
        ((6, 6), (1, 1), (2, 2), (0, 0), (1, 1)),
        ((2, 2), (3, 3), (3, 2), (2, 1), (1, 1)),
    ],
)
def test_products_of_pixels(
    chunk: int,
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> None:
    """All objectives at once, and one by one."""
    torch.manual_seed(0)
    geometry = Geometry((4, 3, *kernel), stride, padding, dilation, False, (0, 0), 1)
    x, weight = torch.randn(5, 3, *size).double(), torch.randn(4, 3, *kernel).double()
    D = torch.randn_like(F.conv2d(x, weight, None, stride, padding, dilation))
    rows = torch.stack(
        [weight_gradient(x[k : k + 1], D[k : k + 1], geometry).flatten() for k in range(5)]
    )
    assert_close(_pixel_kernel.pixel_kernel_gramian(x, D, geometry, chunk), rows @ rows.T)


# --- Heads of tasks: one row is held, and nothing changes but the memory


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
