"""Objects of ``torchjd.aggregation`` as aggregators; torchjd is imported only if one is given."""

from typing import Any, ClassVar

from torch import Tensor, nn
from typing_extensions import override

from lightning_jd.aggregators._base import (
    Aggregator,
    GramianAggregator,
    Property,
    check_gramian,
    check_weights,
)
from lightning_jd.errors import ArgumentError


def comes_from_torchjd(candidate: object) -> bool:
    """Whether the class of ``candidate``, or one of its bases, is defined in torchjd."""
    return any(base.__module__.partition(".")[0] == "torchjd" for base in type(candidate).__mro__)


class TorchJDWeighting(GramianAggregator):
    """A Weighting of torchjd that reads the Gramian.

    The state dict of the weighting is part of ours, under ``weighting.``; what it does not save,
    we do not save. Its random numbers come from the global generator of torch: they depend on
    what else draws from it, and no checkpoint of the aggregator restores them.

    Args:
        weighting: The object of torchjd.
    """

    properties: ClassVar[frozenset[Property]] = frozenset({Property.WEIGHTED})
    is_foreign: ClassVar[bool] = True

    def __init__(self, weighting: nn.Module) -> None:
        super().__init__()
        self.weighting = weighting

    @property
    @override
    def label(self) -> str:
        """The name that it has in torchjd."""
        return f"torchjd.{type(self.weighting).__name__}"

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        check_gramian(gramian)
        return check_weights(type(self.weighting).__name__, self.weighting(gramian), gramian)


class TorchJDAggregator(Aggregator):
    """An Aggregator of torchjd, or a Weighting that reads the Jacobian itself.

    State and random numbers as in :class:`TorchJDWeighting`.

    Args:
        aggregator: The object of torchjd: matrix to vector.
    """

    is_foreign: ClassVar[bool] = True

    def __init__(self, aggregator: nn.Module) -> None:
        super().__init__()
        self.aggregator = aggregator

    @property
    @override
    def label(self) -> str:
        """The name that it has in torchjd."""
        return f"torchjd.{type(self.aggregator).__name__}"

    @override
    def aggregate(self, jacobian: Tensor) -> Tensor:
        result: Tensor = self.aggregator(jacobian)
        return result.to(jacobian)


def adapt(candidate: Any) -> Aggregator:
    """Wrap an object of torchjd, so that it needs the Gramian only wherever that is enough.

    Raises:
        ArgumentError: If it is neither a Weighting nor an Aggregator.
    """
    from torchjd import aggregation as torchjd

    # These look at the number of rows only, which the Gramian has as well.
    counts_rows = (
        torchjd.ConstantWeighting,
        torchjd.MeanWeighting,
        torchjd.RandomWeighting,
        torchjd.SumWeighting,
    )
    if isinstance(candidate, torchjd.GramianWeightedAggregator):
        return TorchJDWeighting(candidate.gramian_weighting)
    if isinstance(candidate, torchjd.WeightedAggregator):
        if isinstance(candidate.weighting, counts_rows):
            return TorchJDWeighting(candidate.weighting)
        return TorchJDAggregator(candidate)
    if isinstance(candidate, torchjd.Aggregator):
        return TorchJDAggregator(candidate)
    if isinstance(candidate, torchjd.Weighting):
        if _reads_the_jacobian(candidate) and not isinstance(candidate, counts_rows):
            return TorchJDAggregator(torchjd.WeightedAggregator(candidate))
        return TorchJDWeighting(candidate)
    raise ArgumentError(
        "An object of torchjd must be a Weighting or an Aggregator to aggregate, "
        f"got {type(candidate).__name__}."
    )


def _reads_the_jacobian(weighting: object) -> bool:
    # Generic arguments do not exist at run time; torchjd marks these weightings by a private base.
    return any(base.__name__ == "_MatrixWeighting" for base in type(weighting).__mro__)
