"""What a step tells a method besides the gradients."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from torch import Tensor

from lightning_jd.errors import ArgumentError

#: Rows without names of their own: the same position holds other data in the next batch.
NAMELESS = ("instances", "instances_tasks")


@dataclass(frozen=True)
class Step:
    """The objectives of one step, in the order of the rows.

    The number of the step is what a method counts itself, see
    :class:`~lightning_jd.aggregators._memory.Memory`: so it survives a checkpoint, and each group
    has its own.

    Attributes:
        names: One name per objective.
        values: Their losses, shape (m,), detached; ``None`` if nobody knows them.
        kind: What a row is: ``"tasks"``, ``"instances"``, ``"instances_tasks"`` or ``"ranks"``.
        group: The group of parameters that the rows belong to; ``None`` without groups.
        columns: The number of tasks per instance, for ``"instances_tasks"``.
    """

    names: tuple[str, ...]
    values: Tensor | None = None
    kind: str = "tasks"
    group: Hashable = None
    columns: int = 1

    @classmethod
    def bare(cls, m: int) -> Step:
        """A step of which only the number of objectives is known; their positions are names."""
        return cls(tuple(map(str, range(m))))

    def losses_or_ones(self, like: Tensor) -> Tensor:
        """The losses as ``like``; one each if they are not known."""
        if self.values is None:
            return like.new_ones(len(self.names))
        return self.values.detach().to(like)

    def losses(self, method: str) -> Tensor:
        """The losses in float64.

        Args:
            method: Who asks, for the message.

        Raises:
            ArgumentError: If they are not known.
        """
        if self.values is None:
            raise ArgumentError(
                f"{method} must know the losses, got gradients only. Use it in a training step "
                "(`lightning_jd.backward`, JacobianDescent), or give it a `Step` with `values`."
            )
        known = self.values.detach()
        return (known.cpu() if known.device.type == "mps" else known).double()
