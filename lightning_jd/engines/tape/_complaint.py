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
    wrong = [found for found in wrong if found.what != "hook"]
    if not raises:
        clipped = [found for found in wrong if found.what == "linearity"]
        wrong = [found for found in wrong if found.what != "linearity"]
        _warn_of_clipping([names[p] for found in clipped for p in found.parameters])
    if not wrong:
        return
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


def _warn_of_clipping(names: Sequence[str]) -> None:
    if names:
        warnings.warn(
            "Gradients must be linear in the losses to be computed in one pass, but a hook or a "
            f"Function on the way to {', '.join(map(repr, names))} clips or normalises them. The "
            "rows of these parameters are computed one by one from now on, each as autograd gives "
            "it for its objective alone, which is slower. Clip the final gradients instead, as "
            "`Trainer(gradient_clip_val=...)` does.",
            RuntimeWarning,
            stacklevel=6,
        )
