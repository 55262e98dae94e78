"""Optimizers that combine gradient and momentum with an aggregator instead of adding them.

>>> import torch
>>> from lightning_jd.optim import SGD
>>> weight = torch.tensor([1.0, 1.0], requires_grad=True)
>>> optimizer = SGD([weight], lr=0.1, momentum=0.9, aggregator="upgrad")
>>> for loss in (weight[0] ** 2, (weight[0] - 3) ** 2):
...     optimizer.zero_grad()
...     loss.backward()
...     optimizer.step()
"""

from lightning_jd.optim._moments import Adam, AdamW, NAdam
from lightning_jd.optim._sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "NAdam"]
