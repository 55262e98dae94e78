"""A scalar knows what it is made of: the terms of its sum, or the examples of its batch.

>>> import torch
>>> x = torch.tensor([[1.0], [2.0]], requires_grad=True)
>>> y = 3 * x
>>> split_loss(y.square().mean() + 0.1 * y.prod(), "terms").names
('mean', 'prod')
>>> split_loss(y.square().mean(), "instances").m
2
"""

from lightning_jd.engines.split._split import Split, SplitSpec, split_loss

__all__ = ["Split", "SplitSpec", "split_loss"]
