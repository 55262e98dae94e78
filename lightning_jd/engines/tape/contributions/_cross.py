"""Inner products between the gradients of two sets of objectives, neither of them formed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_jd.engines.tape.contributions._pieces import pieces

#: Activations A, and cotangents D, of a matrix weight.
Factors = Sequence[Tensor]


def cross_gramian(first: Factors, second: Factors, *, bias: bool) -> Tensor:
    r"""The block :math:`\langle J_k, J_l \rangle` for objectives k here and l there.

    With :math:`J_k = \sum_s D_{ks} A_{ks}^\top`, as for
    :class:`~lightning_jd.engines.tape.OuterProduct`, and the cheaper of its two ways.

    Args:
        first: A, shape (m, T, i), and D, shape (m, T, o), of the objectives k.
        second: Those of the objectives l; m and T may differ.
        bias: Add the gradients of a bias, whose activation is 1.

    Returns:
        Shape (m of the first, m of the second).

    Example:
        >>> A, D = torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[3.0]]])
        >>> cross_gramian((A, D), (A, 2 * D), bias=True)  # <(3, 6, 3), (6, 12, 6)>
        tensor([[108.]])
    """
    (m, T, i), o = first[0].shape, first[1].shape[2]
    n, S, _ = second[0].shape
    if m * T * n * S * (i + o) <= (m * T + n * S + m * n) * i * o:
        return _by_kernels(first, second, bias)
    G = _by_rows(first, second)
    return G + first[1].sum(dim=1) @ second[1].sum(dim=1).T if bias else G


def shared_cross_gramian(first: Factors, second: Factors, *, bias: bool) -> Tensor:
    r"""The same for objectives that share their activations, as tasks do on each process.

    With :math:`J_k = A^\top D_k`, as for a weight (i, o) whose input is A.

    Args:
        first: Activations, shape (N, i), and cotangents, shape (m, N, o).
        second: Those of the other objectives; N and m may differ.
        bias: Add the gradients of a bias.

    Example:
        >>> A, D = torch.tensor([[1.0, 2.0]]), torch.tensor([[[3.0]]])
        >>> shared_cross_gramian((A, D), (A, 2 * D), bias=True)
        tensor([[108.]])
    """
    (A, D), (B, E) = first, second
    K = A @ B.T
    if bias:
        K += 1
    D = D.flatten(1)
    step = max(1, pieces(D).temporary // max(1, D.shape[1] * D.element_size()))
    return torch.cat([D @ torch.matmul(K, some).flatten(1).T for some in E.split(step)], dim=1)


def _by_kernels(first: Factors, second: Factors, bias: bool) -> Tensor:
    A, D = (factor.flatten(0, 1) for factor in second)
    (m, T, _), (n, S, _) = first[0].shape, second[0].shape
    step = max(1, pieces(A).temporary // max(1, 2 * T * n * S * A.element_size()))
    G = A.new_empty(m, n)
    for begin in range(0, m, step):
        a, d = (factor[begin : begin + step].flatten(0, 1) for factor in first)
        K = a @ A.T
        if bias:
            K += 1
        K.mul_(d @ D.T)
        G[begin : begin + step] = K.view(-1, T, n, S).sum(dim=(1, 3))
    return G


def _by_rows(first: Factors, second: Factors) -> Tensor:
    m, n, i = len(first[0]), len(second[0]), first[0].shape[2]
    step = max(1, pieces(first[0]).temporary // max(1, (m + n) * i * first[0].element_size()))
    G = first[0].new_zeros(m, n)
    for d, e in zip(first[1].split(step, dim=2), second[1].split(step, dim=2), strict=True):
        rows = (torch.bmm(d.transpose(1, 2), first[0]), torch.bmm(e.transpose(1, 2), second[0]))
        G.addmm_(rows[0].flatten(1), rows[1].flatten(1).T)
    return G
