"""What the Gramian is made of, for those who take the products themselves."""

from __future__ import annotations

from typing_extensions import override

from lightning_jd.engines.tape._contribution import Contribution
from lightning_jd.engines.tape._ledger import Ledger


class Collector(Ledger):
    """A ledger that multiplies nothing: rows on other processes may be missing from the products.

    Its ``G`` stays zero; gradients are given out as by any ledger.
    """

    takes_one_row = False  # on another process, other objectives may reach these parameters

    @override
    def add(self, contribution: Contribution, *, keeps: bool = True) -> None:
        self._kept.append(contribution)

    @property
    def contributions(self) -> list[Contribution]:
        """All of them; contributions to the same parameter have different entries of it."""
        return self._kept
