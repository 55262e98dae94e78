"""The Jacobian as its definition says, independent of the package, and comparisons with it."""

from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_jd.engines import Objectives, Tape
from lightning_jd.engines.tape import _step
from tests.engines.zoo._registry import Losses, Named
from tests.helpers.rows import scalars

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}


def jacobian_blocks(losses: Losses, named: Named) -> list[Tensor | None]:
    """Rows of every parameter, shape (m, numel); ``None`` where no loss reaches it."""
    tensors = [p for _, p in named]
    rows = [
        torch.autograd.grad(loss, tensors, retain_graph=True, allow_unused=True)
        for loss in scalars(losses)
    ]
    blocks: list[Tensor | None] = []
    for p, column in zip(tensors, zip(*rows, strict=True), strict=True):
        dense = [torch.zeros_like(p) if g is None else g.to_dense() for g in column]
        unreached = all(g is None for g in column)
        blocks.append(None if unreached else torch.stack(dense).reshape(len(rows), -1))
    return blocks


def _noise(dtype: torch.dtype, tolerance: float) -> float:
    """What is this much smaller than the largest may be the rounding of what is zero in theory.

    All losses of the zoo are of the order of 1. Where all gradients are zero in theory (a shift in
    front of a softmax), the largest is rounding too: the callers take at least 1 for it.
    """
    return min(0.05, 20 * torch.finfo(dtype).eps / tolerance)


def assert_gramian(G: Tensor, blocks: list[Tensor | None], tolerance: float) -> None:
    """Every entry is right relative to the lengths of the two gradients it belongs to."""
    J = torch.cat([b.double() for b in blocks if b is not None], dim=1)
    expected, lengths = J @ J.T, J.norm(dim=1)
    lengths = lengths + _noise(G.dtype, tolerance) * lengths.max().clamp(min=1)
    assert G.shape == expected.shape
    assert not G.requires_grad
    allowed = tolerance * lengths[:, None] * lengths[None]
    wrong = (G.double() - expected).abs() > allowed
    assert not wrong.any(), f"{wrong.sum()} of {wrong.numel()} entries:\n{G}\nnot\n{expected}"


def assert_gradients(
    gradients: list[Tensor | None],
    weights: Tensor,
    blocks: list[Tensor | None],
    named: Named,
    tolerance: float,
) -> None:
    """Each parameter has its own combination of rows, and all wrong ones are named."""
    wrong = []
    sizes = [
        0.0 if b is None else float((weights.abs().double() @ b.abs().double()).max())
        for b in blocks
    ]
    for size, (name, p), g, block in zip(sizes, named, gradients, blocks, strict=True):
        if block is None or g is None:
            if block is not None or g is not None:
                wrong.append(f"{name}: {'missing' if g is None else 'must be None'}")
            continue
        assert g.shape == p.shape, name
        assert g.dtype == p.dtype, name
        g = g.to_dense()
        expected = (weights.double() @ block.double()).view(p.shape)
        scale = size + _noise(p.dtype, tolerance) * max(*sizes, 1.0)
        if (difference := (g.double() - expected).abs().max() / scale) > tolerance:
            wrong.append(f"{name}: off by {float(difference):.2g}")
    assert not wrong, "; ".join(wrong)


def check_tape(
    losses: Losses,
    named: Named,
    memory: str,
    tolerance: float,
    rows: bool = False,
    **options: Any,
) -> Tape:
    """Gramian, then gradients for random weights (then the Jacobian), against the rows."""
    blocks = jacobian_blocks(losses, named)
    tape = Tape(Objectives.of(losses), named, memory=memory, **options)
    G = tape.gramian()
    assert_gramian(G, blocks, tolerance)
    weights = torch.randn(len(G), dtype=G.dtype, generator=torch.Generator().manual_seed(1))
    assert_gradients(tape.gradients(weights), weights, blocks, named, tolerance)
    assert set(tape.paths) >= {
        name for (name, _), b in zip(named, blocks, strict=True) if b is not None
    }
    if rows:
        J = tape.jacobian()
        parts = J.split([p.numel() for _, p in named], dim=1)
        for (name, _), found, block in zip(named, parts, blocks, strict=True):
            expected = torch.zeros_like(found) if block is None else block.to(found)
            assert_close(found, expected, rtol=1e-9, atol=1e-11, msg=name)
        assert_close(tape.gramian(), J @ J.T, rtol=1e-9, atol=1e-11)
    return tape


def check_freed(losses: Losses, named: Named, memory: str, tolerance: float) -> None:
    """The same for a tape that frees the graph in its only pass, however small it is."""
    Tape(Objectives.of(losses), named, check="off").gramian()  # shows that the rules apply
    with patch.object(_step, "_SHARE", 1e9):
        check_tape(losses, named, memory, tolerance, retain_graph=False, check="off")
