"""Look-ups in a table."""

from __future__ import annotations

from lightning_jd.engines.tape.contributions import Contribution, Lookup
from lightning_jd.engines.tape.graph import signed
from lightning_jd.engines.tape.rules._registry import Site, register_rule, require


@register_rule("EmbeddingBackward0", 0, saved=("indices",))
def embedding(site: Site) -> Contribution:
    """``nn.Embedding``; the padding entry gets no gradient."""
    index = site.saved("indices")
    require(site.owners.axis < index.ndim and not site.saved("scale_grad_by_freq"))
    D = site.split_cotangent()
    m, d = len(D), D.shape[-1]
    index = site.owners.split(index).reshape(m, -1)
    D = D.reshape(m, -1, d)
    padding = signed(site.saved("padding_idx"))
    if padding is not None and padding >= 0:
        D = D * (index != padding).unsqueeze(2)
    return Lookup(index, D, site.placements[0])
