"""Count what a step asks the device to compute: dispatched operations that are no views."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

#: Returns its input in another shape too, though its schema does not say so.
_ALSO_A_VIEW = torch.ops.aten._unsafe_view.default


class KernelCounter(TorchDispatchMode):
    """Counts operations by name while it is active; those of the backward pass too.

    What runs on the host without torch, such as a small program solved by NumPy, is not seen.

    Example:
        >>> with KernelCounter() as counter:
        ...     _ = (torch.ones(2, 3).t() @ torch.ones(2, 1)).reshape(3) + 1
        >>> sorted(counter.counts.items())
        [('add', 1), ('mm', 1), ('ones', 2)]
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    @override
    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if not func.is_view and func is not _ALSO_A_VIEW:
            self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def kernels_of(step: Callable[[], object]) -> int:
    """The number of kernels of a step."""
    counter = KernelCounter()
    with counter:
        step()
    return counter.counts.total()
