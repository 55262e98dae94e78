"""The Gramian over all processes: assumes the formats of the last step, retries if one differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from torch import Tensor

from lightning_jd.core.processes._exchange import Formed, add_contributions
from lightning_jd.core.processes._forms import Expected, forms_of
from lightning_jd.core.processes._layout import Layout
from lightning_jd.core.processes._pool import Pool
from lightning_jd.engines.tape import Contribution


class LocalParts(NamedTuple):
    """The contributions of one process to the rows of some parameters.

    Attributes:
        names: The parameters.
        sizes: How many entries each of them has.
        parts: The contributions by parameter; one that spans several stands at the first.
    """

    names: tuple[str, ...]
    sizes: Sequence[int]
    parts: list[list[Contribution]]


def gramian_of(
    local_parts: Callable[[], Iterable[LocalParts]],
    rows: Sequence[str],
    pool: Pool,
    layout: Layout,
    agreed: tuple[int, ...],
    like: Tensor,
) -> tuple[Tensor, list[Formed]]:
    """The Gramian of all rows, equal on all processes.

    Most steps are like the one before, so nobody asks how the others hold their rows: a process
    with something else sends zeros of the expected sizes, and says so in the sum that ends the
    exchange. Then all ask, and do it again.

    Args:
        local_parts: Gives the parts of this process, some parameters at a time, the same parameters
            on all processes.
        rows: The names of the rows of this process.
        pool: The processes.
        layout: Whose rows go where.
        agreed: Stands for all that the processes have agreed on in this step.
        like: A tensor of the type of the Gramian.

    Returns:
        The Gramian, and rows that had to be formed for it.
    """
    m = layout.m
    for asks in (False, True):
        numbers = like.new_zeros(m * m + 1)  # the last counts processes with something else
        G = numbers[:-1].view(m, m)
        formed: list[Formed] = []
        for names, sizes, parts in local_parts() if m else ():
            own = forms_of(parts, rows)
            known = Expected(pool, agreed, names)
            forms = known.ask(own) if asks else known.forms or known.ask(own)
            if forms[pool.rank] != own:
                numbers[-1] = 1
                parts = [[] for _ in names]
            formed += add_contributions(G, pool, layout, sizes, forms, parts)
        numbers = pool.sum(numbers, "gramian", flags=1)
        if asks or not numbers[-1]:
            break
    return numbers[:-1].view(m, m), formed
