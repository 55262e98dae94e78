"""Where a method is asked: on the host, if what it reads is small and on a device.

Small programs take many tiny operations, which a device is slow at, and look at their results to
decide what comes next, for which the host would wait each time. So the Gramian is copied once.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import torch
from torch import Tensor

#: Rows up to which the Gramian goes to the host.
ROWS = 64

#: The Gramian of each group; ``None`` where nobody computed one.
Gramians = Mapping[Hashable, Tensor | None]


def to_host(gramians: Gramians, values: Tensor | None) -> tuple[Gramians, Tensor | None]:
    """Copy the Gramians, and the losses if they are known, to the host in one go.

    Example:
        >>> G, losses = torch.eye(2), torch.tensor([3.0, 4.0])
        >>> to_host({None: G}, losses)
        ({None: tensor([[1., 0.],
                [0., 1.]])}, tensor([3., 4.]))
    """
    known = {group: G for group, G in gramians.items() if G is not None}
    parts = [*known.values(), *([] if values is None else [values])]
    if not parts:
        return gramians, values
    numbers = torch.cat([part.reshape(-1) for part in parts]).cpu()
    copies = [
        copy.view(part.shape).to(part.dtype)
        for copy, part in zip(numbers.split([part.numel() for part in parts]), parts, strict=True)
    ]
    found = dict(zip(known, copies, strict=False))
    return {group: found.get(group) for group in gramians}, None if values is None else copies[-1]
