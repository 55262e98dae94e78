"""Products of rows, of which half is computed, and of activations and cotangents."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from lightning_jd.engines.tape.graph import Placement

#: Columns that are multiplied at a time: kernels for few rows add all columns up one by one, which
#: loses digits, and is slow.
COLUMNS = 1 << 12
_FEW_ROWS = 32
#: Multiplications from which on half of a symmetric product is worth several calls.
_LARGE = 1 << 24


def products(rows: Tensor) -> Tensor:
    """Inner products of rows, shape (m, n) -> (m, m)."""
    m, n = rows.shape
    if m >= _FEW_ROWS:
        return sum_of_products([rows])
    if n <= 2 * COLUMNS:
        return rows @ rows.T
    whole = n - n % COLUMNS
    parts, rest = rows[:, :whole].unflatten(1, (-1, COLUMNS)).transpose(0, 1), rows[:, whole:]
    return torch.bmm(parts, parts.transpose(1, 2)).sum(dim=0).addmm_(rest, rest.T)


def sum_of_products(blocks: Iterable[Tensor]) -> Tensor:
    """Inner products of rows that come some columns at a time, each shape (m, columns).

    A block may be overwritten as soon as the next one is asked for.
    """
    G: Tensor | None = None
    is_half = False
    for block in blocks:
        m, n = block.shape
        step = max(16, min(64, m // 4))
        if m < _FEW_ROWS:
            G = products(block) if G is None else G.add_(products(block))
        elif block.device.type != "cpu" or m * m * n < _LARGE:
            G = block @ block.T if G is None else G.addmm_(block, block.T)
        else:
            G, is_half = block.new_zeros(m, m) if G is None else G, True
            for begin in range(0, m, step):
                some = slice(begin, begin + step)
                G[some, begin:].addmm_(block[some], block[begin:].T)
    assert G is not None
    return G.triu() + G.triu(1).T if is_half else G


def by_upper_blocks(
    m: int, step: int, like: Tensor, products_of: Callable[[int, int], Tensor]
) -> Tensor:
    """A symmetric matrix (m, m), of which little more than half is computed.

    Args:
        m: The number of rows.
        step: How many of them meet all later ones at a time.
        like: A tensor of the type of the matrix.
        products_of: The products of the rows from begin to end with these and all later ones.
    """
    if step >= m:
        return products_of(0, m)
    G = like.new_empty(m, m)
    for begin in range(0, m, step):
        end = min(m, begin + step)
        block = products_of(begin, end)
        G[begin:end, begin:] = block
        G[end:, begin:end] = block[:, end - begin :].T
    return G


def matrix_gradient(
    A: Tensor, D: Tensor, weight: Placement, *, cotangents_first: bool = False
) -> Tensor:
    """The gradient, flat, of a matrix that meets activations A (n, i) and cotangents D (n, o)."""
    gradient = D.T @ A if cotangents_first != weight.transposed else A.T @ D
    if weight.where is not None:
        gradient = weight.placed(gradient.reshape(1, -1))
    return gradient.reshape(-1)
