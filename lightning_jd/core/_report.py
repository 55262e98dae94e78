"""What one step of Jacobian descent did."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from html import escape

from torch import Tensor
from typing_extensions import override

from lightning_jd.engines import Slow
from lightning_jd.errors import NotComputedError


@dataclass(frozen=True)
class GroupReport:
    """Gramian and weights of one group of parameters.

    Attributes:
        gramian: G, shape (m, m); ``None`` if no Jacobian was computed, or only its norms.
        weights: w, shape (m,); ``None`` if the aggregator is not a weighting of the rows.
        parameters: The names of the parameters in the group.
        products: The inner product of each gradient with the update, shape (m,), if there are no
            weights.
        squared_length: The squared length of the update, if there are no weights.
        norms: The norms of the gradients, shape (m,), if nothing else of the Gramian was computed.
    """

    gramian: Tensor | None
    weights: Tensor | None
    parameters: tuple[str, ...]
    products: Tensor | None = None
    squared_length: Tensor | None = None
    norms: Tensor | None = None


@dataclass(frozen=True, repr=False)
class Report:
    """What :func:`backward` computed; nothing in it was copied from an accelerator.

    Attributes:
        known_gramian: :attr:`gramian`, or ``None`` in a step without one.
        known_weights: :attr:`weights`, or ``None`` in a step without them.
        names: The names of the objectives.
        paths: Parameter to the way its gradient was computed; ``"plain"`` for those that were not
            selected.
        milliseconds: Duration of ``"gramian"``, ``"weights"``, ``"gradients"`` and ``"total"``. On
            an accelerator it is the time to launch the work, unless the aggregator synchronises.
        groups: One entry per group of parameters; the only key is ``None`` without groups.
        bytes_sent: On several processes, what this one has sent to the others, by purpose. What
            DistributedDataParallel sends is not included.
        skipped: The names of the objectives that were left out because they were not finite, on
            all processes.
        slow: Parameter to the reason why its gradients took one pass per instance of this process,
            where they did.
    """

    known_gramian: Tensor | None
    known_weights: Tensor | None
    names: tuple[str, ...]
    paths: dict[str, str]
    milliseconds: dict[str, float]
    groups: dict[Hashable, GroupReport]
    bytes_sent: dict[str, int] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()
    slow: dict[str, Slow] = field(default_factory=dict)

    @property
    def gramian(self) -> Tensor:
        """G = J Jᵀ over the aggregated parameters, shape (m, m); with groups, the sum of theirs.

        Raises:
            NotComputedError: With a balancer, for which no Jacobian is computed, with a method that
                reads norms only, and in the steps between two of ``weights_every``.
                ``known_gramian`` is ``None`` there.
        """
        if self.known_gramian is None:
            raise NotComputedError(
                "`gramian` must have been computed in this step, got a step of a balancer, of a "
                "method that reads norms only, or one that reuses its weights. Check whether "
                "`known_gramian` is None."
            )
        return self.known_gramian

    @property
    def weights(self) -> Tensor:
        """The weights of the rows, one per objective: the update direction is Jᵀw.

        Raises:
            NotComputedError: If the aggregator is not a weighting of the rows, or with several
                groups, each of which has its own. ``known_weights`` is ``None`` there.
        """
        if self.known_weights is None:
            raise NotComputedError(
                "`weights` must exist, got a step of an aggregator without weights, or of several "
                "groups with weights each (in `groups`). Check whether `known_weights` is None."
            )
        return self.known_weights

    @override
    def __repr__(self) -> str:
        """The same as a text, so that notebooks and debuggers show it."""
        return str(self)

    def _repr_html_(self) -> str:
        """The same for a notebook."""
        return f"<pre>{escape(str(self))}</pre>"

    @override
    def __str__(self) -> str:
        """Show the objectives, their weights and the paths on a few lines (copies to the host)."""
        counted = Counter(self.paths.values()).most_common()
        spent = ", ".join(f"{name} {ms:.1f}" for name, ms in self.milliseconds.items())
        lines = [
            f"{len(self.names)} objectives, {len(self.paths)} parameters in "
            f"{len(self.groups)} group(s)",
            "paths: " + ", ".join(f"{path} ({count})" for path, count in counted),
            f"milliseconds: {spent}",
        ]
        for name, group in self.groups.items():
            lines += [] if name is None else [f"group {name}"]
            lines += _table(self.names, group)
        return "\n".join(lines)


def _table(names: tuple[str, ...], group: GroupReport, shown: int = 10) -> list[str]:
    G = group.gramian
    lengths = group.norms if G is None else G.diagonal().clamp(min=0).sqrt()
    norms = [None] * len(names) if lengths is None else lengths.tolist()
    weights = [None] * len(names) if group.weights is None else group.weights.tolist()
    width = max(9, *(len(name) for name in names[:shown]))
    lines = [f"{'objective':<{width}}  {'gradient norm':>13}  {'weight':>10}"]
    for name, norm, weight in list(zip(names, norms, weights, strict=True))[:shown]:
        lines.append(f"{name:<{width}}  {_cell(norm):>13}  {_cell(weight):>10}")
    if len(names) > shown:
        lines.append(f"... and {len(names) - shown} more")
    return lines


def _cell(number: float | None) -> str:
    return "-" if number is None else f"{number:.4g}"


def describe_slow(slow: Mapping[str, Slow], shown: int = 3) -> str:
    """Name the slow parameters, the reason, the factor and the remedy; empty if there are none.

    Example:
        >>> describe_slow({"w": Slow("Custom", 8, "one pass per row", "write a rule")})
        'Slow: w (one pass per row, so 8 passes a step instead of 1). Faster: write a rule.'
    """
    names: dict[Slow, list[str]] = {}
    for name, why in slow.items():
        names.setdefault(why, []).append(name)
    lines = []
    for reason, found in names.items():
        more = f" and {len(found) - shown} more" if found[shown:] else ""
        line = (
            f"Slow: {', '.join(found[:shown])}{more} ({reason.why}, so {reason.passes} passes a "
            "step instead of 1)."
        )
        lines.append(f"{line} Faster: {reason.remedy}." if reason.remedy else line)
    return "\n".join(lines)


def warn_slow(slow: Mapping[str, Slow], *, stacklevel: int) -> None:
    """Warn of whole passes that are repeated although a remedy is known.

    The text is the same in every step, so that Python shows it once.
    """
    remedies = {why.operation: why for why in slow.values() if why.is_mixed and why.remedy}
    for operation, why in remedies.items():
        warnings.warn(
            f"One backward pass per instance, instead of one for all: {operation} mixes the "
            f"instances or hides them. Faster: {why.remedy}.",
            RuntimeWarning,
            stacklevel=stacklevel + 1,
        )
