"""Notices a run that has nothing to aggregate, or nothing to train."""

from __future__ import annotations

from lightning_jd.errors import SetupError


class Batches:
    """Counts what ``training_step`` gave.

    Attributes:
        got: What the last batch had in the place of several losses.
    """

    def __init__(self) -> None:
        self.got = "no loss"
        self._trained = 0  # those that Lightning did not skip
        self._skipped = 0  # of this epoch, for which `training_step` returned None

    def add(self, *, is_skipped: bool) -> None:
        """Count a batch."""
        self._trained += not is_skipped
        self._skipped += is_skipped

    def check_first(self, steps: int) -> None:
        """Raise an error if the first batch had nothing to aggregate.

        Args:
            steps: Backward passes that were ours.

        Raises:
            SetupError: With what was found and what to return instead.
        """
        if self._trained == 1 and steps == 0:
            raise SetupError(
                "Jacobian descent requires several losses from `training_step` or "
                f"`manual_backward`, got {self.got} in the first batch. Return the vector, list "
                "or dict of losses (as the output or under the key 'loss'), or set split='auto' "
                "to split the scalar. With manual optimization, call `manual_backward(losses)` "
                "in place of `loss.backward()`. (If only this batch has a single loss, return "
                "{'loss': {'name': loss}}.)"
            )

    def check_epoch(self) -> None:
        """Raise an error if ``training_step`` returned None in all batches of an epoch.

        Raises:
            SetupError: With the number of batches.
        """
        skipped, self._skipped = self._skipped, 0
        if self._trained == 0 and skipped > 0:
            raise SetupError(
                f"`training_step` must return losses, got None in all {skipped} batches of the "
                "epoch. Lightning skips such batches, so nothing was trained."
            )
