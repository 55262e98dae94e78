"""A function from Gramians to weights, as an aggregator."""

from collections.abc import Callable

from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._base import (
    GramianAggregator,
    Property,
    check_gramian,
    check_weights,
)


class FromFunction(GramianAggregator):
    r"""The aggregator :math:`J^\top w(G)` of any function :math:`w` of the Gramian.

    It has neither a name nor a state; for these, write a class and register it.

    Args:
        function: Takes a Gramian ``(m, m)``, returns weights ``(m,)``.

    Raises:
        ShapeError: When called, if the function does not return one weight per objective.

    Example:
        >>> import torch
        >>> inverse_norms = FromFunction(lambda gramian: gramian.diagonal() ** -0.5)
        >>> inverse_norms(torch.tensor([[3.0, 0.0], [0.0, 0.5]]))
        tensor([1., 1.])
    """

    properties = frozenset({Property.WEIGHTED})
    is_foreign: bool = True

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    @property
    @override
    def label(self) -> str:
        """The name of the function."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        check_gramian(gramian)
        return check_weights("The function of the Gramian", self.function(gramian), gramian)
