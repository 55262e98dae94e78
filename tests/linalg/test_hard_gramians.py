"""Gramians that real training met: the hardest of several thousand steps, kept as they were.

They come from the convolutional networks of the paper, trained with UPGrad on MNIST and CIFAR-10 in
float32, one objective per instance, instances drawn with replacement, at learning rates from 1e-3
to 100 and up to divergence. ``largest_weights`` are runs without regularisation in which one
instance is learnt so well that its gradient is 1e-15 of the others'; ``near_overflow`` is the step
before infinity; in ``underflow`` a squared norm is subnormal and contradicts the rest.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_jd.linalg import (
    cagrad_weights,
    dual_cone_residuals,
    dual_cone_weights,
    min_norm_residuals,
    min_norm_weights,
    upgrad_weights,
)
from tests.helpers.gramians import RESIDUAL

with np.load(Path(__file__).parent / "data" / "gramians_of_training.npz") as archive:
    GRAMIANS = {name: torch.from_numpy(archive[name]) for name in archive.files}


@pytest.fixture(params=GRAMIANS.values(), ids=GRAMIANS)
def gramian(request: pytest.FixtureRequest) -> Tensor:
    G: Tensor = request.param
    return G


@pytest.mark.parametrize("reg", [0.0, 1e-8, 1e-4])
@pytest.mark.parametrize("solver", ["auto", "batched"])
def test_the_dual_cone(gramian: Tensor, reg: float, solver: str) -> None:
    targets = torch.eye(len(gramian))
    weights = dual_cone_weights(gramian, targets, reg=reg, solver=solver)
    assert weights.isfinite().all()
    assert upgrad_weights(gramian, reg=reg, solver=solver).isfinite().all()
    residuals = dual_cone_residuals(gramian, targets, weights, reg=reg)
    assert max(float(r.max()) for r in residuals[:3]) <= RESIDUAL[torch.float32]


def test_the_least_norm(gramian: Tensor) -> None:
    residuals = min_norm_residuals(gramian, min_norm_weights(gramian))
    assert max(map(float, residuals)) <= RESIDUAL[torch.float32]


@pytest.mark.parametrize("c", [0.4, 1.0])
def test_cagrad(gramian: Tensor, c: float) -> None:
    weights = cagrad_weights(gramian, c)
    assert weights.isfinite().all()
    assert weights.min() >= 0
