"""Says which parameters a certificate has found to be wrong."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from lightning_jd.engines.tape._certificate import Mismatch
from lightning_jd.errors import GraphError


def complain(wrong: Sequence[Mismatch], names: Sequence[str], *, raises: bool) -> None:
    """Name the parameters that are wrong, in a warning or an error.

    Raises:
        GraphError: If that is asked for.
    """
    listed = ", ".join(
        f"{' and '.join(repr(names[p]) for p in found.parameters)} "
        f"({found.what}, relative error {found.error:.1e})"
        for found in wrong
    )
    must = "The Gramian must agree with an ordinary backward pass, got a mismatch for "
    if raises:
        raise GraphError(f"{must}{listed}. Pass `check='auto'` to deal with them row by row.")
    warnings.warn(
        f"{must}{listed}. These parameters are dealt with row by row from now on, which is "
        "exact but slower. Please report the model.",
        RuntimeWarning,
        stacklevel=5,
    )
