"""Finds owners by experiment, where they could not be proven.

Two backward passes whose only difference is a random scale per loss show who owns a slice: if its
gradient grew by the scale of loss i, no other loss contributed to it (but for a coincidence of
probability zero). What is tested are the very gradients that are used afterwards, in every step, so
that nothing has to be assumed about the next one.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lightning_jd.engines.tape._owners import NOBODY, Owners

#: Relative differences between passes that are rounding: within a slice, and to the largest entry.
_ROUNDING = {
    torch.float64: (1e-9, 1e-14),
    torch.float32: (2e-5, 1e-7),
    torch.bfloat16: (3e-2, 1e-4),
    torch.float16: (1e-2, 1e-4),
}
_SPREAD = 8.0  # the scales span as many powers of two
#: The user's random numbers (dropout, shuffling) must not depend on what is probed.
_random = np.random.default_rng(0)


def random_scales(m: int, like: Tensor) -> Tensor:
    """Scales of m losses, in random order and well apart: a factor 2^(8 / (m - 1)) at least."""
    exponents = _random.permutation(m) / max(1, m - 1) * _SPREAD - _SPREAD / 2
    jitter = _random.uniform(-0.2, 0.2, m) * _SPREAD / max(1, m - 1)
    return torch.as_tensor(2.0 ** (exponents + jitter), dtype=like.dtype, device=like.device)


def random_weights(k: int, like: Tensor) -> Tensor:
    """Draw k numbers between 0.5 and 1.5."""
    return torch.as_tensor(_random.uniform(0.5, 1.5, k), dtype=like.dtype, device=like.device)


def owners_seen(plain: Tensor, scaled: Tensor, scales: Tensor) -> Owners | None:
    """Whoever owns the slices of a tensor, judged by its gradients in two passes.

    Args:
        plain: Gradient of the sum of the losses.
        scaled: Gradient of the sum of the scaled losses.
        scales: The scale of each loss, shape (m,).

    Returns:
        ``None`` if there is no axis along which every slice has one owner.
    """
    if not (bool(torch.isfinite(plain).all()) and bool(torch.isfinite(scaled).all())):
        return None
    within, overall = _ROUNDING.get(plain.dtype, (0.0, 0.0))
    plain, scaled, scales = plain.double(), scaled.double(), scales.double()
    negligible = overall * plain.abs().max() * scales.max() if plain.numel() else 0.0
    for axis in range(plain.ndim):
        first, second = (x.movedim(axis, 0).reshape(x.shape[axis], -1) for x in (plain, scaled))
        found = _owner_of_rows(first, second, scales, within, float(negligible))
        if found is not None:
            return Owners(axis, found)
    return None


def _owner_of_rows(
    plain: Tensor, scaled: Tensor, scales: Tensor, within: float, negligible: float
) -> np.ndarray | None:
    norms = (plain * plain).sum(dim=1)
    growth = (plain * scaled).sum(dim=1) / norms.clamp(min=torch.finfo(norms.dtype).tiny)
    owner = (growth.unsqueeze(1) / scales - 1).abs().argmin(dim=1)
    expected = plain * scales[owner].unsqueeze(1)
    off = (scaled - expected).abs().amax(dim=1)
    fine = off <= within * expected.abs().amax(dim=1) + negligible
    if not bool(fine.all()):
        return None
    nobody = (plain == 0).all(dim=1) & (scaled == 0).all(dim=1)
    ids = torch.where(nobody, torch.full_like(owner, NOBODY), owner)
    return ids.cpu().numpy()
