"""The rows of the Jacobian that one process contributes to a step."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from lightning_jd.core.processes._layout import Description, Layout
from lightning_jd.core.processes._pool import Pool
from lightning_jd.engines import NamedParameters, Slow, column_count, from_columns


class LocalRows(ABC):
    """Rows that are held, or that can be had from a graph that is alive.

    Attributes:
        slow: The parameters whose rows took one pass each, and why.
    """

    slow: dict[str, Slow]

    @abstractmethod
    def description(self) -> Description:
        """What to tell the other processes."""

    @abstractmethod
    def add_products(self, G: Tensor, pool: Pool, layout: Layout, named: NamedParameters) -> None:
        """Add the inner products with the rows of all processes.

        Args:
            G: Where to, shape (m, m); the sum over processes is the Gramian.
            pool: The processes.
            layout: Whose rows go where.
            named: The parameters.
        """

    @abstractmethod
    def gradients(self, named: NamedParameters, weights: Tensor) -> dict[str, Tensor]:
        """Combine the rows of this process.

        Args:
            named: The parameters.
            weights: One per row of this process.

        Returns:
            Name of a parameter to its gradient, where some row reaches it.
        """

    @abstractmethod
    def values(self) -> list[Tensor]:
        """The losses of the rows of this process, as vectors in the order of the rows."""

    @property
    @abstractmethod
    def paths(self) -> dict[str, str]:
        """How the rows of each parameter were computed."""


def per_parameter(direction: Tensor, named: NamedParameters) -> dict[str, Tensor]:
    """Cut a direction of shape (n,) into the gradients of the parameters."""
    parts = direction.split([column_count(tensor) for _, tensor in named])
    return {
        name: from_columns(part, tensor) for part, (name, tensor) in zip(parts, named, strict=True)
    }


def columns_of(J: Tensor, named: NamedParameters, some: NamedParameters) -> Tensor:
    """The columns of some of the parameters that a Jacobian is about, in its order."""
    wanted = {name for name, _ in some}
    parts = J.split([column_count(tensor) for _, tensor in named], dim=1)
    own = zip(parts, named, strict=True)
    return torch.cat([part for part, (name, _) in own if name in wanted], dim=1)
