"""Gramians like those of a training run, made from a handful of numbers.

They were fitted to the Gramians of the paper's network on MNIST (one objective per image, UPGrad,
float32) at its first step, after some twenty, and after some hundred: the same few large
eigenvalues, one for each class, over a bulk of small ones; the same share of pairs in conflict and
of weights that are raised; the same norms, of which late in a run most are negligible. The tests
compare them with Gramians that were stored.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

_CLASSES = 10


class _Moment(NamedTuple):
    """Where a run is.

    Attributes:
        margin: By how much the logit of the right class is above the others, on average.
        spread: The standard deviation of the logits.
        common: The size of what all features share, relative to that of an image.
        uneven: How much more of their own some images have than others, as a logarithm.
        features: How many there are.
    """

    margin: float
    spread: float
    common: float
    uneven: float
    features: int


_START = _Moment(margin=0.0, spread=0.3, common=2.5, uneven=0.4, features=128)
_EARLY = _Moment(margin=3.0, spread=1.5, common=3.5, uneven=0.6, features=64)
_LATE = _Moment(margin=11.0, spread=3.0, common=2.0, uneven=0.3, features=128)


def run_start(m: int) -> Tensor:
    """The first step: nothing is learnt, and examples of different classes conflict."""
    return _gramian(m, _START)


def run_early(m: int) -> Tensor:
    """After some twenty steps: the hardest, most directions are nearly exhausted."""
    return _gramian(m, _EARLY)


def run_late(m: int) -> Tensor:
    """After some hundred steps: most examples are learnt, and regularisation holds them."""
    return _gramian(m, _LATE)


def _gramian(m: int, moment: _Moment) -> Tensor:
    """That of the last layer: inner products of features times those of residuals; in float32."""
    generator = torch.Generator().manual_seed(m)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    labels = torch.randint(_CLASSES, (m,), generator=generator)
    logits = moment.spread * normal(m, _CLASSES)
    logits[torch.arange(m), labels] += moment.margin
    residuals = logits.softmax(dim=1) - functional.one_hot(labels, _CLASSES)
    features = moment.common * normal(1, moment.features)
    features = features + 0.5 * normal(_CLASSES, moment.features)[labels]
    features = features + (moment.uneven * normal(m, 1)).exp() * normal(m, moment.features)
    kernel = 1 + features @ features.T / moment.features
    return (kernel * (residuals @ residuals.T)).to(torch.float32)
