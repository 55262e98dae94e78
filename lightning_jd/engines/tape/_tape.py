"""The tape: Gramian first, then the gradients for the chosen weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from lightning_jd.engines._columns import column_count, from_columns, to_columns
from lightning_jd.engines._hooks import HookWatch, hook_register
from lightning_jd.engines._objectives import Objectives
from lightning_jd.engines.tape._certificate import (
    Mismatch,
    complain,
    mismatches,
    random_vector,
)
from lightning_jd.engines.tape.contributions import Contribution, rounded
from lightning_jd.engines.tape.graph import Graph, gradients_of, types_in, walk
from lightning_jd.engines.tape.owners import Evidence
from lightning_jd.engines.tape.plan import KnownGraph, Plan, known_graph, standing_of
from lightning_jd.engines.tape.run import Collector, Ledger, Recording, can_free, is_light
from lightning_jd.errors import ArgumentError, GraphError

#: Steps between two certificates of the same kind of graph.
CHECK_EVERY = 1000


class Tape:
    r"""The Gramian of any autograd graph, without its Jacobian.

    With J the Jacobian of m losses with respect to the parameters, :meth:`gramian` is
    :math:`G = J J^\top` and :meth:`gradients` is :math:`J^\top w`. Everything is exact up to
    rounding, on any graph; a graph that is not understood costs time, not correctness.
    :meth:`jacobian` is J itself, for methods that need it.

    Args:
        objectives: The losses.
        named_params: Names and parameters; gradients come in their order.
        scale: Losses are multiplied by it before they are differentiated, and results divided, so
            that half-precision gradients do not underflow.
        memory: ``"fast"`` keeps what the gradients are computed from, in the form that saves most
            work; ``"low"`` in the form that is smallest, or it keeps nothing and ends with an
            ordinary backward pass.
        check: ``"auto"`` certifies the Gramian against an ordinary backward pass whenever a new
            kind of graph appears, and every ``check_every`` steps. Parameters that fail are dealt
            with row by row from then on, and a warning names them. ``"raise"`` raises instead,
            ``"always"`` certifies every step, and ``"off"`` never does.
        check_every: Steps between two certificates.
        retain_graph: Whether the graph of the losses is kept. If not, it is freed on the way where
            that is possible, as ``Tensor.backward`` does, and gradients can be asked for once.

    Raises:
        ArgumentError: If ``memory`` or ``check`` is none of these.

    Example:
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> tape = Tape(Objectives.of(x * torch.tensor([3.0, 4.0])), [("x", x)])
        >>> tape.gramian()
        tensor([[ 9.,  0.],
                [ 0., 16.]])
        >>> tape.gradients(torch.tensor([0.5, 1.0]))
        [tensor([1.5000, 4.0000])]
    """

    def __init__(
        self,
        objectives: Objectives,
        named_params: Sequence[tuple[str, Tensor]],
        *,
        scale: float | Tensor = 1.0,
        memory: Literal["fast", "low"] = "fast",
        check: Literal["auto", "raise", "always", "off"] = "auto",
        check_every: int = CHECK_EVERY,
        retain_graph: bool = True,
    ) -> None:
        if memory not in ("fast", "low"):
            raise ArgumentError(f"`memory` must be 'fast' or 'low', got {memory!r}.")
        if check not in ("auto", "raise", "always", "off"):
            raise ArgumentError(
                f"`check` must be 'auto', 'raise', 'always' or 'off', got {check!r}."
            )
        self.objectives = objectives
        self.named = list(named_params)
        #: How each parameter was dealt with, by name; filled by :meth:`gramian`.
        self.paths: dict[str, str] = {}
        #: The operation at which rows could not be followed further, where that happened.
        self.culprits: dict[str, str] = {}
        self._scale, self._memory = scale, memory
        self._check, self._check_every = check, check_every
        self._retain_graph = retain_graph
        self._ledger: Ledger | None = None
        self._sparse: frozenset[int] = frozenset()

    def gramian(self) -> Tensor:
        """The matrix of inner products of the gradients of the objectives, shape (m, m).

        Float32, or float64 if a loss or a parameter is; computed once.

        Raises:
            GraphError: If no loss depends on a parameter, or autograd cannot see through a
                checkpoint, or a certificate fails and ``check`` is ``"raise"``.
        """
        if self._ledger is None or isinstance(self._ledger, Collector):
            with self._full_precision():
                self._ledger = self._record()
        return self._ledger.G

    def contributions(self) -> list[Contribution]:
        """What the Gramian is the sum of the products of, for those who have more rows elsewhere.

        Nothing is multiplied here but where a certificate is due. Contributions to one parameter
        have different entries of it; parameters that no loss reaches have none. They are kept for
        :meth:`gradients`, whatever ``memory`` says.

        Raises:
            GraphError: As :meth:`gramian`.
        """
        if not isinstance(self._ledger, Collector):
            with self._full_precision():
                self._ledger = self._record(collects=True)
        assert isinstance(self._ledger, Collector)
        return self._ledger.contributions

    def jacobian(self) -> Tensor:
        """The gradients of the objectives, one row each, shape (m, n), in the type of the Gramian.

        For instances it costs about as much as the Gramian, not one backward pass per row.

        Raises:
            GraphError: As :meth:`gramian`.
        """
        contributions = self.contributions()
        assert self._ledger is not None
        sizes = [column_count(tensor) for tensor in self._tensors]
        J = self._ledger.G.new_zeros(self.objectives.m, sum(sizes))
        columns = J.split(sizes, dim=1)
        with self._full_precision():
            for contribution in contributions:
                for part in contribution.split():
                    columns[part.placements[0].parameter].add_(part.rows())
        return J

    def gradients(self, weights: Tensor) -> list[Tensor | None]:
        """The combined gradient of each parameter, in its type; ``None`` if no loss reaches it.

        It is sparse where that of autograd would be.

        Args:
            weights: w, shape (m,).
        """
        if self._ledger is None:
            self.gramian()
        assert self._ledger is not None
        with self._full_precision():
            weights = weights.detach().to(self._ledger.G)
            found = self._ledger.gradients(weights)
            if self._ledger.unkept:
                unkept = sorted(self._ledger.unkept)
                keep = self._retain_graph
                found |= self._ordinary_gradients(weights, unkept, retain_graph=keep)
        gradients = [
            from_columns(found[k], tensor) if k in found else None
            for k, tensor in enumerate(self._tensors)
        ]
        for k in self._sparse:  # as optimizers for sparse gradients want them
            dense = gradients[k]
            gradients[k] = None if dense is None else dense.to_sparse(1)
        return gradients

    @contextmanager
    def _full_precision(self) -> Iterator[None]:
        device = self.objectives.device.type
        with torch.no_grad():
            if not torch.is_autocast_enabled(device):
                yield
                return
            with torch.autocast(device, enabled=False):
                yield

    def _record(self, *, collects: bool = False) -> Ledger:
        graph = walk(self.objectives.outputs, self._tensors)
        instances = _instances(self.objectives)
        evidence = Evidence(graph, instances, self._scale)
        known = known_graph(graph)
        # hooks are not in the signature: what was certified without them is certified anew
        hooks = hook_register.of(max(graph.nodes[root.node]._sequence_nr() for root in graph.roots))
        standing = standing_of(known, evidence.m, hooks.total)
        while True:
            plan = known.plan(evidence, standing.demoted)
            self._check_reached(plan)
            frees = not (collects or self._retain_graph) and can_free(graph, plan)
            frees = frees and (self._memory == "fast" or is_light(plan))
            # What is certified is what runs: that depends on what is kept for the gradients, on
            # hooks on the way, and on the order of the sizes.
            sizes = rounded([self.objectives.m, plan.activations])
            delivery = (self._memory, self._memory == "fast" or frees, hooks.total, sizes)
            is_due = self._check == "always" or standing.is_due(delivery, self._check_every)
            is_due = is_due and self._check != "off"
            if collects and not is_due:
                standing.passed(delivery)
                return self._run(graph, known, plan, Collector)
            if not is_due:
                standing.passed(delivery)
                return self._run(graph, known, plan, frees=frees)
            watch = HookWatch(hooks.numbers)
            with watch.watched():
                ledger = self._run(graph, known, plan, frees=frees, notes=True)
            # Where something is not finite, nothing can be compared: try again in the next step.
            is_finite = bool(torch.isfinite(ledger.G).all())
            with watch.silenced():
                wrong = self._certify(ledger, graph, plan) if is_finite else []
            if not wrong:
                if is_finite:
                    standing.passed(delivery)
                ledger.shares.clear()
                return self._run(graph, known, plan, Collector) if collects else ledger
            complain(wrong, [name for name, _ in self.named], raises=self._check == "raise")
            standing.demoted |= {p for mismatch in wrong for p in mismatch.parameters}

    def _run(
        self,
        graph: Graph,
        known: KnownGraph,
        plan: Plan,
        kind: type[Ledger] = Ledger,
        *,
        frees: bool = False,
        notes: bool = False,
    ) -> Ledger:
        types = {tensor.dtype.to_real() for tensor in self._tensors} | {self.objectives.dtype}
        dtype = torch.float64 if torch.float64 in types else torch.float32
        ledger = kind(
            self.objectives.m,
            dtype,
            self.objectives.device,
            room=sum(tensor.numel() for tensor in self._tensors) // 3,
            keeps=self._memory == "fast" or frees,
            lean=self._memory == "low",
            notes=notes,
        )
        recording = Recording(
            graph,
            known,
            plan,
            self.objectives,
            dict(enumerate(self._tensors)),
            self._scale,
            retain_graph=notes or not frees,
        )
        recording.run(ledger)
        ledger.close()
        self.paths = {
            name: recording.paths.get(k, "unreached") for k, (name, _) in enumerate(self.named)
        }
        self._sparse = plan.sparse
        self.culprits = {self.named[k][0]: name for k, name in plan.culprits.items()}
        return ledger

    @property
    def _tensors(self) -> list[Tensor]:
        return [tensor for _, tensor in self.named]

    def _check_reached(self, plan: Plan) -> None:
        if not plan.reached:
            raise GraphError(
                "The losses must depend on a parameter, got none that they reach: "
                f"{', '.join(repr(name) for name, _ in self.named[:5])}"
                f"{', ...' if len(self.named) > 5 else ''} are not in their graph. Look for "
                "`detach()`, `torch.no_grad()` or a frozen module on the way."
            )

    def _ordinary_gradients(
        self, weights: Tensor, chosen: Sequence[int], *, retain_graph: bool = True
    ) -> dict[int, Tensor]:
        """``Jᵀ w`` of some parameters, by autograd."""
        gradients = gradients_of(
            self.objectives.outputs,
            self.objectives.cotangents(weights * self._scale),
            [self.named[k][1] for k in chosen],
            retain_graph=retain_graph,
        )
        return {
            k: to_columns(gradient) / self._scale
            for k, gradient in zip(chosen, gradients, strict=True)
            if gradient is not None
        }

    def _certify(self, ledger: Ledger, graph: Graph, plan: Plan) -> list[Mismatch]:
        # Under autocast, parameters and losses are precise, but what is between them is not.
        types = {tensor.dtype.to_real() for tensor in self._tensors} | types_in(graph)
        eps = max(torch.finfo(dtype).eps for dtype in types)
        v = random_vector(ledger.G, spread=1e3 if eps > 1e-5 else 1e6)
        sizes = {k: column_count(tensor) for k, tensor in enumerate(self._tensors)}
        wrong = mismatches(ledger, v, self._ordinary_gradients, sizes, eps)
        return [found for found in wrong if not set(found.parameters) <= plan.by_rows]


def _instances(objectives: Objectives) -> Tensor | None:
    """The losses of several instances; ``None`` if the rows are tasks, or one instance."""
    losses = objectives.losses
    if not isinstance(losses, Tensor) or objectives.kind == "tasks" or len(losses) == 1:
        return None
    return losses
