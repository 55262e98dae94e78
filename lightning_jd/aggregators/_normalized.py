"""Normalized: another method on gradients of length one."""

from typing import Literal, get_args

import torch
from torch import Tensor
from typing_extensions import override

from lightning_jd.aggregators._base import check_gramian
from lightning_jd.aggregators._precision import in_float64
from lightning_jd.aggregators._registry import register
from lightning_jd.aggregators._step import Step
from lightning_jd.aggregators._wrapper import Wrapped, Wrapper
from lightning_jd.errors import UnknownNameError

#: The length that all gradients get.
Length = Literal["mean", "geometric", "shortest"]


@register
class Normalized(Wrapper):
    r"""Another aggregator on gradients of equal length, so that no task is lost by its units.

    .. math::
        \mathcal A(J) = \ell \sum_{i=1}^{m} u_i \frac{g_i}{\lVert g_i \rVert}, \qquad
        u = w(D^{-1} G D^{-1}), \quad D = \operatorname{diag}(\lVert g_i \rVert)

    with :math:`w` the weights of the wrapped aggregator for unit rows. The length :math:`\ell` is
    the same for all rows: by default the mean of their norms, so that gradients of equal length are
    aggregated as without this wrapper. A row without gradient has the weight 0 and does not count
    in :math:`\ell`.

    The influence of a task then does not shrink as its gradient does, so a task that is learned
    already keeps pushing with full force. The direction is that of the wrapped aggregator for unit
    rows: if that opposes no row, neither does this one. The only property that is claimed, for
    every method and length, is that the update is a weighted sum of the rows.

    Args:
        aggregator: The wrapped aggregator, which must compute weights: a name, a dict with a name
            and arguments, or an object.
        length: :math:`\ell`: the ``"mean"`` or the ``"geometric"`` mean of the norms, or the norm
            of the ``"shortest"`` row.

    Raises:
        ArgumentError: If the wrapped aggregator does not compute weights.
        UnknownNameError: If there is no such length.

    Example:
        >>> Normalized("mean")(torch.tensor([[30.0, 0.0], [0.0, 2.0]]))
        tensor([8., 8.])
    """

    keeps_small_tasks = True

    def __init__(
        self,
        aggregator: Wrapped = "upgrad",
        length: Length = "mean",
    ) -> None:
        super().__init__(aggregator)
        if length not in get_args(Length):
            raise UnknownNameError.of("length", str(length), get_args(Length))
        self.length = length

    @override
    def weigh(self, gramian: Tensor, step: Step) -> Tensor:
        check_gramian(gramian)
        G = in_float64(gramian)
        squares = G.diagonal()
        seen = squares > 0
        norms = torch.where(seen, squares, 1.0).sqrt()
        unit = torch.where(seen & seen[:, None], G / norms / norms[:, None], 0.0)
        u = in_float64(self.aggregator.weigh(unit.to(gramian), step))
        return torch.where(seen, self._common(norms, seen) * u / norms, 0.0).to(gramian)

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        return self.weigh(gramian, Step.bare(len(gramian)))

    def _common(self, norms: Tensor, seen: Tensor) -> Tensor:
        if self.length == "shortest":
            return torch.where(seen, norms, torch.inf).amin()
        summed = norms.log() if self.length == "geometric" else norms
        mean = torch.where(seen, summed, 0.0).sum() / seen.sum().clamp(min=1)
        return mean.exp() if self.length == "geometric" else mean
