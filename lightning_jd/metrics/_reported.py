"""The report of a step in the place of its Gramian and weights."""

from typing import Protocol, TypeVar

from torch import Tensor


class Reported(Protocol):
    """What metrics read of a :class:`~lightning_jd.core.Report`."""

    @property
    def gramian(self) -> Tensor:
        """G, shape (m, m)."""

    @property
    def weights(self) -> Tensor:
        """w, shape (m,)."""

    @property
    def known_weights(self) -> Tensor | None:
        """The weights, or ``None``."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the objectives."""


_T = TypeVar("_T", Tensor, Tensor | None)


def read(gramian: _T | Reported, weights: Tensor | None = None) -> tuple[_T, Tensor | None]:
    """Gramian and weights of an update; a report has both."""
    if gramian is None or isinstance(gramian, Tensor):
        return gramian, weights
    return gramian.gramian, gramian.known_weights if weights is None else weights
