"""The state of a method between steps, by parameter group and task name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from lightning_jd.aggregators._base import Aggregator, GramianAggregator
from lightning_jd.aggregators._random import OwnGenerator
from lightning_jd.aggregators._step import NAMELESS, Step
from lightning_jd.errors import ArgumentError
from lightning_jd.linalg import check_finite, check_square


class Memory:
    """State of a method for one parameter group: tensors by task name.

    Tasks may come and go. The entry of an absent task is kept; a new task starts at a value that
    the method provides.

    Attributes:
        steps: The number of steps so far.

    Example:
        >>> memory = Memory()
        >>> memory.keep("weight", ("a", "b"), torch.tensor([1.0, 2.0]))
        >>> memory.keep("weight", ("b", "c"), torch.tensor([3.0, 4.0]))
        >>> memory.recall("weight", ("c", "a", "new"), torch.zeros(3))
        tensor([4., 1., 0.])
    """

    def __init__(self) -> None:
        self.steps = 0
        self._kept: dict[str, tuple[tuple[str, ...], Tensor]] = {}

    def names(self, key: str) -> tuple[str, ...]:
        """The tasks that have an entry under a key."""
        return self._kept[key][0] if key in self._kept else ()

    def recall(self, key: str, names: Sequence[str], initial: Tensor) -> Tensor:
        """The entries of the given tasks.

        Args:
            key: The name of the quantity.
            names: The tasks.
            initial: Initial values, one entry (or row) per task; they also determine dtype and
                device.
        """
        known, kept = self._kept.get(key, ((), None))
        if kept is None:
            return initial
        kept = kept.to(initial)
        if known == tuple(names):
            return kept
        position = {name: i for i, name in enumerate(known)}
        rows = [kept[position[n]] if n in position else initial[i] for i, n in enumerate(names)]
        return torch.stack(rows)

    def keep(self, key: str, names: Sequence[str], value: Tensor) -> None:
        """Store one entry (or row) per given task; the entries of other tasks stay."""
        names, value = tuple(names), value.detach()
        known, kept = self._kept.get(key, (names, None))
        if kept is not None and known != names:
            others = [i for i, name in enumerate(known) if name not in set(names)]
            names += tuple(known[i] for i in others)
            value = torch.cat([value, kept.to(value)[others]])
        self._kept[key] = (names, value)

    def state(self) -> dict[str, Any]:
        """The content, in types that ``torch.load(weights_only=True)`` accepts."""
        kept = {
            key: {"names": list(names), "value": value.clone()}
            for key, (names, value) in self._kept.items()
        }
        return {"steps": self.steps, "kept": kept}

    @classmethod
    def of(cls, state: dict[str, Any]) -> Memory:
        """Rebuild a memory from :meth:`state`."""
        memory = cls()
        memory.steps = int(state["steps"])
        memory._kept = {
            key: (tuple(entry["names"]), entry["value"].clone())
            for key, entry in state["kept"].items()
        }
        return memory


class Stateful(nn.Module):
    """Mixin of methods with a memory: one per group, all of them in the state dict.

    The state dict has the same keys before and after the first step, so that it loads strictly into
    a fresh object. On several processes only the first one asks the method. Its state is the one
    that a checkpoint keeps and that all processes load.
    """

    def __init__(self) -> None:
        super().__init__()
        self._memories: dict[str, Memory] = {}

    def memory(self, step: Step) -> Memory:
        """The memory of the parameter group of this step; increments its step counter.

        Raises:
            ArgumentError: If the rows have no names that persist from step to step.
        """
        check_named(type(self).__name__, step)
        memory = self._memories.setdefault(group_key(step.group), Memory())
        memory.steps += 1
        return memory

    def reset(self) -> None:
        """Reset all memories and the random generator, for a new run."""
        self._memories.clear()
        if isinstance(self, OwnGenerator):
            OwnGenerator.reset(self)

    @override
    def get_extra_state(self) -> dict[str, Any]:
        """All memories, and the state of the random generator if there is one."""
        state: dict[str, Any] = {
            "groups": {group: memory.state() for group, memory in self._memories.items()}
        }
        if isinstance(self, OwnGenerator):
            state["generator"] = OwnGenerator.get_extra_state(self)
        return state

    @override
    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the state."""
        self._memories = {group: Memory.of(each) for group, each in state["groups"].items()}
        if isinstance(self, OwnGenerator):
            OwnGenerator.set_extra_state(self, state["generator"])


class StatefulGramianAggregator(Stateful, GramianAggregator):
    """A stateful aggregator that requires the Gramian only; subclasses define :meth:`weigh`."""

    @abstractmethod
    @override
    def weigh(self, gramian: Tensor, step: Step) -> Tensor: ...

    @override
    def weights(self, gramian: Tensor) -> Tensor:
        """Same as :meth:`weigh`; rows are named by position."""
        check_square("gramian", gramian)
        return self.weigh(gramian, Step.bare(len(gramian)))


class StatefulAggregator(Stateful, Aggregator):
    """A stateful aggregator that requires the Jacobian; subclasses define :meth:`combine`."""

    @abstractmethod
    @override
    def combine(self, jacobian: Tensor, step: Step) -> Tensor: ...

    @override
    def aggregate(self, jacobian: Tensor) -> Tensor:
        """Same as :meth:`combine`; rows are named by position."""
        check_finite("jacobian", jacobian)
        return self.combine(jacobian, Step.bare(len(jacobian)))


def recalled_on_simplex(memory: Memory, names: Sequence[str], like: Tensor) -> Tensor:
    """The kept weights of some tasks, scaled to the sum one; those of new tasks are the mean.

    Args:
        memory: Where they are kept, under ``"weight"``.
        names: The tasks.
        like: A tensor of their type, on their device.
    """
    unknown = like.new_full((len(names),), torch.nan)
    weights = memory.recall("weight", names, unknown)
    known = weights.isfinite()
    count = known.sum()
    mean = torch.where(known, weights, 0.0).sum() / count.clamp(min=1)
    weights = torch.where(known, weights, torch.where(count > 0, mean, 1.0))
    total = weights.sum()  # zero, if only tasks are present that had no weight
    return torch.where(total > 0, weights / total, 1 / len(names))


def group_key(group: Hashable) -> str:
    """The name of a group of parameters in a checkpoint."""
    return "" if group is None else str(group)


def check_named(method: str, step: Step) -> None:
    """Raise if the rows of a step have no names that mean the same in the next step."""
    if step.kind in NAMELESS:
        raise ArgumentError(
            f"{method} stores its state by task name, so its losses must be tasks, got "
            f"{len(step.names)} {step.kind.replace('_', ' x ')}. Return a dict or list of task "
            "losses, or set rows='tasks'."
        )
