"""Scale and shift after layer, group and batch normalisation."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_jd.engines.tape.contributions import Contribution, Rows
from lightning_jd.engines.tape.rules._registry import Site, register_rule, require


@register_rule("NativeLayerNormBackward0", 1, saved=("input", "result1", "result2"))
def layer_norm_scale(site: Site) -> Contribution:
    """The normalised input times the cotangent, summed over all but the normalised axes."""
    x, mean, rstd = (_wide(site.saved(name)) for name in ("input", "result1", "result2"))
    return _over_positions(site, (x - mean) * rstd * site.cotangent)


@register_rule("NativeLayerNormBackward0", 2)
def layer_norm_shift(site: Site) -> Contribution:
    """The cotangent, summed over all but the normalised axes."""
    return _over_positions(site, site.cotangent)


def _over_positions(site: Site, pulled: Tensor) -> Contribution:
    """The sum per owner of what was pulled back to the scale, or to the shift."""
    require(site.owners.axis < pulled.ndim - len(site.shape))
    rows = site.owners.split_cotangent(_wide(pulled))
    positions = rows.ndim - len(site.shape)
    return Rows(rows.to(site.dtype).sum(dim=tuple(range(1, positions))), site.placements[0])


@register_rule("NativeGroupNormBackward0", 1, saved=("input", "result1", "result2"))
def group_norm_scale(site: Site) -> Contribution:
    """Per channel: ``(Σ D x - mean Σ D) / deviation``, so that x is read once."""
    x, D = _pixels_last(site.saved("input")), _pixels_last(site.cotangent)
    grouped = len(x), int(site.saved("group")), -1
    mean, rstd = (_wide(site.saved(name)).view(grouped) for name in ("result1", "result2"))
    products, sums = (D * x).sum(dim=2).view(grouped), D.sum(dim=2).view(grouped)
    centred = torch.addcmul(products, sums, mean, value=-1)
    return _per_channel(site, (centred * rstd).flatten(1))


@register_rule(
    *("NativeBatchNormBackward0", 1),
    saved=("input", "result1", "result2", "running_mean", "running_var"),
)
def batch_norm_scale(site: Site) -> Contribution:
    """Per channel: the normalised input times the cotangent, with the statistics of the mode."""
    x, D = _pixels_last(site.saved("input")), _pixels_last(site.cotangent)
    if site.saved("training"):
        mean, rstd = _wide(site.saved("result1")), _wide(site.saved("result2"))
    else:
        mean = _wide(site.saved("running_mean"))
        rstd = (_wide(site.saved("running_var")) + site.saved("eps")).rsqrt()
    centred = torch.addcmul((D * x).sum(dim=2), D.sum(dim=2), mean, value=-1)
    return _per_channel(site, centred * rstd)


@register_rule("NativeGroupNormBackward0", 2)
@register_rule("NativeBatchNormBackward0", 2)
def channel_shift(site: Site) -> Contribution:
    """Per channel: the sum of the cotangent."""
    return _per_channel(site, _pixels_last(site.cotangent).sum(dim=2))


def _pixels_last(x: Tensor) -> Tensor:
    """(n, channels, ...) -> (n, channels, pixels), one pixel if there are no other axes."""
    return _wide(x).unsqueeze(2).flatten(2)


def _wide(x: Tensor) -> Tensor:
    """At least single precision: in half precision, little is left of ``Σ D x - mean Σ D``."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _per_channel(site: Site, per_sample: Tensor) -> Contribution:
    require(site.owners.axis == 0)
    rows = site.owners.split_cotangent(per_sample).to(site.dtype)
    is_one = rows.shape[1] == 1  # sample per objective
    return Rows(rows.squeeze(1) if is_one else rows.sum(dim=1), site.placements[0])
