"""One step of Jacobian descent: rows -> Gramian -> weights -> gradients.

Rows may be those of one process or of several, of one micro-batch or of several, whole or sharded.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Mapping
from functools import partial
from math import isfinite
from typing import Literal

import torch
from torch import Tensor

from lightning_jd.aggregators import (
    Aggregator,
    Balancer,
    GramianAggregator,
    Mean,
    Method,
    Step,
    Sum,
)
from lightning_jd.core._report import GroupReport, Report
from lightning_jd.core._update import Update
from lightning_jd.core.processes._delivery import COMPLETE, Delivery, Gradients
from lightning_jd.core.rows._base import Rows, nothing_reached, per_parameter
from lightning_jd.engines import (
    Groups,
    NamedParameters,
    column_count,
    hooks_silenced,
    split_into_groups,
)
from lightning_jd.errors import AggregatorError, ArgumentError
from lightning_jd.linalg import gramians_trusted

#: Rows up to which the Gramian goes to the host.
_MAX_HOST_ROWS = 64

#: The Gramian of each group; ``None`` where none was computed.
Gramians = Mapping[Hashable, Tensor | None]


def compute_update(
    rows: Rows,
    method: Method,
    *,
    groups: Groups = None,
    overflow: Literal["raise", "mean"] = "raise",
    delivery: Delivery = COMPLETE,
) -> Update:
    """Compute the gradients of one step of Jacobian descent without touching ``.grad``.

    Selected parameters get ``Jᵀ w`` with ``w = method.weights(J Jᵀ)``, group by group, or
    ``method(J)`` where the method is no weighting; a balancer gives ``w`` from the losses alone.
    The others get their plain gradient, that of the sum over tasks of the mean over instances.

    Args:
        rows: The rows, see :func:`lightning_jd.core.collect`.
        method: The aggregator or balancer. Only the first process asks it.
        groups: ``None``, ``"layer"`` or a function from the name of a parameter to its group.
        overflow: If losses are finite but gradients are not: ``"raise"``, or ``"mean"`` to weigh
            all rows alike and let a GradScaler skip the step.
        delivery: What the gradients of this process must be.

    Returns:
        The update, whose report is the same on all processes. Zero if every row was left out.

    Raises:
        NonFiniteError: If a loss, or the gradient of one, is NaN or infinite.
        GraphError: If no objective reaches a parameter.
        ArgumentError: If the method cannot work with these rows.
    """
    method = method.turn()
    if (problem := rows.unsupported(method)) is not None:
        raise ArgumentError(problem)
    check_values(method, known=rows.has_values)
    return _Step(rows, method, groups, overflow, delivery).update()


class _Step:
    def __init__(
        self, rows: Rows, method: Method, groups: Groups, overflow: str, delivery: Delivery
    ) -> None:
        self.rows, self.method, self.delivery = rows, method, delivery
        rows.as_plain = isinstance(method, (Mean, Sum))
        self.only_norms = rows.only_norms = getattr(method, "only_norms", False)
        self.device = rows.named[0][1].device
        self.overflow = overflow
        self.is_weighted = isinstance(method, GramianAggregator)
        self.weights_first = method.at_features or isinstance(method, Balancer)
        # Losses and features are the same for all groups.
        self.groups = None if self.weights_first else groups
        self.needs_rows = not (self.is_weighted or self.weights_first)
        self.members: dict[Hashable, NamedParameters] = {}
        self.values: Tensor | None = None
        self.jacobians: dict[Hashable, Tensor] = {}
        self.gramians: Gramians = {}
        self.host_gramians: Gramians = {}  # on the CPU where the method solves there
        self.host_values: Tensor | None = None
        self.reports: dict[Hashable, GroupReport] = {}
        self.own: Gradients = {}
        self.complete: Gradients = {}
        self.milliseconds: dict[str, float] = {}
        self.last = time.perf_counter()

    def update(self) -> Update:
        tensors = dict(self.rows.named)
        with torch.no_grad(), hooks_silenced(tensors.values()):
            exactly = self.groups is not None or self.needs_rows
            is_next = not (exactly or self.weights_first)
            self.rows.agree(exactly=exactly, gramian_is_next=is_next)
            self.inputs()
            finite = self.finite()
            # All groups are checked first: a method with a state must not run in vain.
            for group, named in self.members.items():
                self.reports[group] = self.solve(group, named, finite[group])
            self.lap("weights")
            combined = None
            if self.weights_first and self.reports:
                weights = self.reports[None].weights
                assert weights is not None
                combined = self.rows.combined(weights)
            if combined is not None:
                reached = [tensor for _, tensor in self.rows.selected]
                return Update(reached, [], self.rows.shown(), self.report(), combined)
            found = self.gradients()
        if not found and self.rows.pool.size == 1 and self.rows.layout.m:
            raise nothing_reached(len(tensors))
        reached = [tensors[name] for name in found]
        return Update(reached, list(found.values()), self.rows.shown(), self.report())

    def lap(self, name: str) -> None:
        """File the time since the last call under a name."""
        now = time.perf_counter()
        self.milliseconds[name] = self.milliseconds.get(name, 0.0) + 1000 * (now - self.last)
        self.last = now

    def inputs(self) -> None:
        """Compute plain gradients of unselected parameters, then losses and Gramians."""
        rows = self.rows
        if rows.plain:  # before the Gramian, which may free the graph
            self.own = rows.plain_gradients(self.delivery)
            self.lap("gradients")
        self.members = split_into_groups(rows.selected, self.groups)
        self.values = rows.values(wanted=self.method.uses_values)
        self.gramians = {group: self.gramian(group) for group in self.members}
        self.lap("gramian")

    def gramian(self, group: Hashable) -> Tensor | None:
        """The Gramian of a group, as far as the method reads one."""
        if self.method.at_features:
            return self.rows.features_gramian(self.method.features)
        if self.weights_first:
            return None
        if self.only_norms:
            return self.rows.squared_norms(self.members[group]).diag()
        if not self.needs_rows:
            return self.rows.gramian(self.members[group])
        J = self.jacobians[group] = self.rows.jacobian(self.members[group])
        return self.rows.pool.from_first(J @ J.T, "gramian")

    def finite(self) -> dict[Hashable, bool]:
        """Whether the rows of each group are finite; rows that are not may have been left out."""
        while True:
            self.host_gramians, self.host_values = self.gramians, self.values
            if self.device.type != "cpu" and self.solves_on_host():
                self.host_gramians, self.host_values = _to_host(self.gramians, self.values)
            # An inner product of two finite rows is finite: the diagonals decide about all of G.
            checked = _diagonals(self.host_gramians)
            if self.host_values is not None:
                checked.append(self.host_values)
            numbers = _numbers(checked)
            if all(map(math.isfinite, numbers)):
                return dict.fromkeys(self.members, True)
            m = self.rows.layout.m
            fine = [[*map(math.isfinite, numbers[k : k + m])] for k in range(0, len(numbers), m)]
            if self.overflow == "mean" and (self.values is None or all(fine[-1])):
                known = [group for group, G in self.host_gramians.items() if G is not None]
                return dict(zip(known, map(all, fine), strict=False))
            self.rows = self.rows.finite_only([all(flags) for flags in zip(*fine, strict=True)])
            self.inputs()

    def solves_on_host(self) -> bool:
        """Whether the method reads copies on the host, the only wait for the device."""
        return (
            self.rows.layout.m <= _MAX_HOST_ROWS and not self.needs_rows and is_builtin(self.method)
        )

    def solve(self, group: Hashable, named: NamedParameters, finite: bool) -> GroupReport:
        """The weights or the direction of a group, the same on all processes."""
        layout, pool, G = self.rows.layout, self.rows.pool, self.gramians[group]
        values = self.host_values if self.rows.has_values else None
        step = Step(layout.names, values, layout.kind, group, layout.columns)
        names = tuple([name for name, _ in named])
        method, m = self.method, layout.m
        if not self.needs_rows:
            like = self.values if G is None else G
            assert like is not None
            if m and finite:
                known = self.host_gramians[group]
                solve = partial(weights_from, method, known, step, like.device)  # type: ignore[arg-type]
                weights = pool.computed_by_first(solve, m, like, "weights")
            else:
                weights = like.new_full((m,), 1 / max(1, m))
            if self.only_norms and G is not None:
                norms = G.diagonal().clamp(min=0).sqrt()
                return GroupReport(None, weights, names, norms=norms)
            return GroupReport(G, weights, names)
        assert isinstance(method, Aggregator)
        assert G is not None
        J = self.jacobians.pop(group)
        n = sum(column_count(tensor) for _, tensor in named)

        def with_products() -> Tensor:
            if m == 0:
                return G.new_zeros(n)
            direction = direction_from(method, J, step) if finite else J.mean(dim=0)
            return torch.cat([direction, J @ direction])

        answer = pool.computed_by_first(with_products, n + m, G, "gradient")
        direction, products = answer.split([n, m])
        self.complete |= per_parameter(direction, named)
        return GroupReport(G, None, names, products, direction @ direction)

    def gradients(self) -> Gradients:
        """The gradients that this process adds to ``.grad``."""
        for group, report in reversed(self.reports.items()):
            if report.weights is not None:
                self.own |= self.rows.combine(self.members[group], report.weights, self.delivery)
        found = self.rows.delivered(self.own, self.complete, self.delivery)
        self.lap("gradients")
        return found

    def report(self) -> Report:
        rows, parts, m = self.rows, list(self.reports.values()), self.rows.layout.m
        if parts:
            known = [part.gramian for part in parts if part.gramian is not None]
            gramian = sum(known[1:], known[0]) if known else None
            weights = parts[0].weights if len(parts) == 1 else None
        else:  # no parameter is shared by two tasks: plain training
            gramian, weights = rows.like().new_zeros(m, m), rows.plain_weights()
        paths = rows.paths
        if self.weights_first and not paths:
            path = "features" if self.method.at_features else "balanced"
            paths = dict.fromkeys([name for name, _ in rows.selected], path)
        if rows.plain:
            paths = {name: "plain" for name, _ in rows.plain} | paths
        self.milliseconds["total"] = sum(self.milliseconds.values())
        return Report(
            known_gramian=gramian,
            known_weights=weights,
            names=rows.layout.names,
            paths=paths,
            milliseconds=self.milliseconds,
            groups=self.reports,
            bytes_sent=dict(rows.pool.sent),
            skipped=rows.skipped,
            slow=rows.slow,
        )


def _numbers(vectors: list[Tensor]) -> list[float]:
    """All numbers of some vectors, for which a device is waited for once."""
    if len(vectors) > 1 and vectors[0].device.type != "cpu":
        vectors = [torch.cat(vectors)]
    return [number for vector in vectors for number in vector.tolist()]


def _diagonals(gramians: Gramians) -> list[Tensor]:
    return [G.diagonal() for G in gramians.values() if G is not None]


def _to_host(gramians: Gramians, values: Tensor | None) -> tuple[Gramians, Tensor | None]:
    """Copy the Gramians, and the losses if they are known, to the host in one go.

    Small programs take many tiny operations and branch on their results: the host would wait for a
    device each time.
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


#: Their results are finite by construction, and tested; on an accelerator they are trusted.
_BUILTIN = "lightning_jd.aggregators."


def weights_from(
    method: GramianAggregator | Balancer,
    gramian: Tensor | None,
    step: Step,
    device: torch.device | None = None,
) -> Tensor:
    """The weights of the rows, shape (m,).

    Args:
        method: The aggregator or balancer.
        gramian: The Gramian of the rows; ``None`` for a balancer, which reads losses only.
        step: The rest of its input.
        device: The device of the result; by default that of the Gramian.

    Example:
        >>> from lightning_jd.aggregators import resolve
        >>> weights_from(resolve("mean"), torch.eye(2), Step(("a", "b")))
        tensor([0.5000, 0.5000])
    """
    if isinstance(method, Balancer):
        answer = method.weigh(step)
    else:
        assert gramian is not None
        with gramians_trusted():
            answer = method.weigh(gramian, step)
    weights = _checked(method, answer, len(step.names), "one weight per objective")
    is_there = device is None or device == weights.device
    return weights if is_there else weights.to(device, non_blocking=True)


def direction_from(aggregator: Aggregator, jacobian: Tensor, step: Step) -> Tensor:
    """The direction, shape (n,), of an aggregator that needs the Jacobian (m, n)."""
    answer = aggregator.combine(jacobian, step)
    return _checked(aggregator, answer, jacobian.shape[1], "one number per column")


def check_values(method: Method, *, known: bool) -> None:
    """Raise if a method reads the losses, and only their places in the graph are known."""
    if method.uses_values and not known:
        raise ArgumentError(
            f"{method.label} must know the value of each loss, got the terms of a sum, whose "
            "values are gone. Return the losses themselves, as a dict or list."
        )


def _checked(aggregator: Method, answer: object, size: int, what: str) -> Tensor:
    if not isinstance(answer, Tensor):
        got = type(answer).__name__
        raise _error(aggregator, what, f"a tensor of shape ({size},), got {got}.")
    if answer.shape != (size,):
        raise _error(aggregator, what, f"shape ({size},), got shape {tuple(answer.shape)}.")
    # NaN and infinity survive in a sum, and there may be millions of numbers
    if _is_trusted(aggregator, answer) or isfinite(_sum(answer)):
        return answer
    if bad := (~torch.isfinite(answer)).nonzero().flatten().tolist():
        shown = ", ".join(map(str, bad[:10])) + (", ..." if len(bad) > 10 else "")
        raise _error(
            aggregator,
            what,
            f"all finite, got NaN or infinity in {len(bad)} of {size} (position {shown}). "
            "The losses and their gradients are finite: look for a division by zero, or a root or "
            "logarithm of a negative number, in the aggregator. Nothing was updated.",
        )
    return answer


def _error(aggregator: Method, what: str, but: str) -> AggregatorError:
    return AggregatorError(f"The aggregator {aggregator.label} must return {what}, {but}")


def _sum(numbers: Tensor) -> float:
    is_short = numbers.shape[0] <= 64 and numbers.device.type == "cpu"
    total: float = sum(numbers.tolist()) if is_short else numbers.sum().item()
    return total


def _is_trusted(aggregator: Method, answer: Tensor) -> bool:
    """Whether the check would only make the host wait for the device."""
    return answer.device.type != "cpu" and is_builtin(aggregator)


def is_builtin(method: Method) -> bool:
    """Whether a method is one of this package, and calls no code of others."""
    return type(method).__module__.startswith(_BUILTIN) and not method.is_foreign
