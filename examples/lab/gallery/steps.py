"""The steps that are timed, and the error and the slow parameters of a model of the gallery."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

from examples.lab.gallery._case import Specimen
from lightning_jd.aggregators import resolve
from lightning_jd.core import backward

Step = Callable[[], None]
Kind = Literal["instances", "tasks"]


def plain_step(specimen: Specimen) -> Step:
    """Forward, and the gradient of the mean loss."""
    return _counted(specimen, lambda i: specimen.plain(i).backward())


def descent_step(specimen: Specimen, kind: Kind) -> Step:
    """Forward, Gramian, weights and the gradient of their combination."""
    mean = resolve("mean")
    return _counted(
        specimen, lambda i: backward(losses_of(specimen, kind, i), specimen.model, mean)
    )


def losses_of(specimen: Specimen, kind: Kind, step: int = 0) -> Tensor | dict[str, Tensor]:
    """The objectives of one step."""
    return specimen.instances(step) if kind == "instances" else specimen.tasks(step)


def error_of(specimen: Specimen, kind: Kind) -> float:
    """The error of a step with UPGrad against one ordinary backward pass per loss of its graph.

    Returns:
        The larger of two: that of an entry of the Gramian relative to the lengths of its two
        gradients, and that of the update relative to the lengths of what it combines.
    """
    losses = losses_of(specimen, kind)
    trained = [p for p in specimen.model.parameters() if p.requires_grad]
    J = row_by_row(losses.values() if isinstance(losses, dict) else losses, trained)
    report = backward(losses, specimen.model, "upgrad")
    G, w, lengths = report.gramian.double(), report.weights.double(), J.norm(dim=1)
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    update = torch.cat([_flat(g) for g in found])
    # A gradient of nothing but rounding has no direction that could be wrong.
    scale = lengths.clamp(min=float(lengths.max()) * 1e-6)
    errors = torch.stack(
        [
            ((G - J @ J.T) / (scale[:, None] * scale)).abs().max(),
            (update - w @ J).norm() / (w.abs() @ lengths),
        ]
    )
    return float(errors.max())  # NaN if one is


def row_by_row(losses: Iterable[Tensor], parameters: Sequence[Tensor]) -> Tensor:
    """The Jacobian by its definition, shape (m, n), float64.

    Complex parameters count as pairs of real numbers.
    """
    rows = []
    for loss in losses:
        found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        pairs = zip(found, parameters, strict=True)
        rows.append(torch.cat([_flat(torch.zeros_like(p) if g is None else g) for g, p in pairs]))
    return torch.stack(rows)


def _flat(gradient: Tensor) -> Tensor:
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    real = torch.view_as_real(dense) if dense.is_complex() else dense
    return real.flatten().double()


def _counted(specimen: Specimen, work: Callable[[int], object]) -> Step:
    count = 0

    def step() -> None:
        nonlocal count
        specimen.model.zero_grad(set_to_none=True)
        work(count)
        count += 1

    return step
