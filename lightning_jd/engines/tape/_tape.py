"""The tape: Gramian first, then the gradients for the chosen weights."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Literal

import torch
from torch import Tensor

from lightning_jd.engines._columns import column_count, from_columns, to_columns
from lightning_jd.engines._hooks import HookWatch, hook_register
from lightning_jd.engines._objectives import Objectives
from lightning_jd.engines.tape._certificate import (
    Mismatch,
    agree,
    complain,
    complain_of_program,
    mismatches,
    random_vector,
)
from lightning_jd.engines.tape.contributions import Contribution, chosen, fastest, rounded
from lightning_jd.engines.tape.graph import Graph, gradients_of, types_in, walk
from lightning_jd.engines.tape.owners import Evidence
from lightning_jd.engines.tape.plan import KnownGraph, Plan, known_graph, standing_of
from lightning_jd.engines.tape.run import (
    ROWS,
    Collector,
    Compiled,
    Experience,
    Ledger,
    Loop,
    Recording,
    Replay,
    can_compile,
    can_free,
    experience_of,
    is_light,
    loop_over_tasks,
    record,
)
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
        self._scale, self._memory = scale, memory
        self._check, self._check_every = check, check_every
        self._retain_graph = retain_graph
        self._ledger: Ledger | Replay | Loop | None = None
        self._plan: Plan | None = None
        self._paths: Mapping[int, str] | None = None

    @property
    def paths(self) -> dict[str, str]:
        """How each parameter was dealt with, by name; empty before :meth:`gramian`."""
        if self._plan is None and self._paths is None:
            return {}
        paths = self._paths
        if paths is None:
            assert self._plan is not None
            paths = self._plan.paths()
        return {name: paths.get(k, "unreached") for k, (name, _) in enumerate(self.named)}

    @property
    def culprits(self) -> dict[str, str]:
        """The operation at which rows could not be followed further, where that happened."""
        found = {} if self._plan is None else self._plan.culprits
        return {self.named[k][0]: name for k, name in found.items()}

    def gramian(self) -> Tensor:
        """The matrix of inner products of the gradients of the objectives, shape (m, m).

        Float32, or float64 if a loss or a parameter is; computed once.

        Raises:
            GraphError: If no loss depends on a parameter, or autograd cannot see through a
                checkpoint, or a certificate fails and ``check`` is ``"raise"``.
        """
        if self._ledger is None or isinstance(self._ledger, Collector):
            with self._full_precision():
                self._ledger = self._looped() or self._record()
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
        assert isinstance(self._ledger, Ledger)
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
        ledger = self._ledger
        assert ledger is not None
        with self._full_precision():
            weights = weights.detach().to(ledger.G)
            if isinstance(ledger, Replay | Loop):
                shaped = ledger.gradients(weights)
            else:
                found = ledger.gradients(weights)
                if ledger.unkept:
                    unkept = sorted(ledger.unkept)
                    keep = self._retain_graph
                    found |= self._ordinary_gradients(weights, unkept, retain_graph=keep)
                shaped = {k: from_columns(found[k], self._tensors[k]) for k in found}
        gradients = [shaped.get(k) for k in range(len(self.named))]
        for k in (
            () if self._plan is None else self._plan.sparse
        ):  # as optimizers for sparse gradients want them
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

    @cached_property
    def _loop_key(self) -> Hashable | None:
        """What the choice between the tape and a plain loop is filed under; ``None``: no loop."""
        objectives = self.objectives
        tensors, m = self._tensors, objectives.m
        numbers = sum([tensor.numel() for tensor in tensors])
        if objectives.kind != "tasks" or m == 1 or self._check == "always":
            return None
        if self._memory == "low" or m * numbers > ROWS or isinstance(objectives.losses, Tensor):
            return None
        if any(tensor.is_complex() for tensor in tensors):
            return None
        # not by the graph, which would have to be walked
        return "loop", m, numbers, id(tensors[0]), objectives.dtype, objectives.device

    def _looped(self) -> Loop | None:
        """A plain loop over tasks, where that has been found to be faster than the tape."""
        if self._loop_key is None or chosen(self._loop_key) != "loop":
            return None
        loop = self._loop(retain_graph=self._retain_graph)
        if not loop.reached:
            raise self._nothing_reached()
        self._paths = dict.fromkeys(loop.reached, "rows")
        return loop

    def _loop(self, *, retain_graph: bool = True) -> Loop:
        return loop_over_tasks(
            self.objectives, self._tensors, self._scale, self._dtype, retain_graph=retain_graph
        )

    def _record(self, *, collects: bool = False) -> Ledger | Replay:
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
            experience = experience_of(plan)
            experience.steps += 1
            may_replay = not collects and self._may_replay(plan)
            program = self._program(graph, experience) if may_replay else None
            frees = not (collects or self._retain_graph)
            frees = frees and (program is not None or can_free(graph, plan))
            frees = frees and (self._memory == "fast" or is_light(plan))
            # What is certified is what runs: that depends on what is kept for the gradients, on
            # hooks on the way, on the order of the sizes, and on whether there is a program.
            sizes = rounded([self.objectives.m, plan.activations])
            keeps = self._memory == "fast" or frees
            delivery = (self._memory, keeps, hooks.total, sizes, program is not None)
            is_due = self._check == "always" or standing.is_due(delivery, self._check_every)
            if not is_due or self._check == "off":
                standing.passed(delivery)
                if program and (replay := self._replay(*program, graph, frees=frees)):
                    self._plan, self._paths = plan, None
                    return replay
                if may_replay and experience.steps > 1:
                    return self._recorded(graph, plan)
                if not collects and self._loop_key is not None and not plan.sparse:
                    self._choose(partial(self._interpret, graph, known, plan))
                ledger = self._empty_ledger(Collector if collects else Ledger, keeps=keeps)
                return self._interpret(graph, known, plan, ledger, frees=frees)
            watch = HookWatch(hooks.numbers)
            with watch.watched():
                ledger = self._empty_ledger(keeps=keeps, notes=True)
                self._interpret(graph, known, plan, ledger)
            # Where something is not finite, nothing can be compared: try again in the next step.
            wrong = None
            if bool(torch.isfinite(ledger.G).all()):
                with watch.silenced():
                    wrong = self._certify(ledger, graph, plan)
            if not wrong:
                if wrong is not None:
                    standing.passed(delivery)
                ledger.shares.clear()
                if program is not None and wrong is not None:
                    with watch.silenced():
                        self._compare(*program, graph, plan, ledger)
                if collects:
                    return self._interpret(graph, known, plan, self._empty_ledger(Collector))
                return ledger
            complain(wrong, [name for name, _ in self.named], raises=self._check == "raise")
            standing.demoted |= {p for mismatch in wrong for p in mismatch.parameters}

    def _choose(self, by_tape: Callable[[Ledger], Ledger]) -> None:
        """Measure once whether the tape is faster than a plain loop: both are exact."""
        weights = torch.ones(self.objectives.m, dtype=self._dtype, device=self.objectives.device)
        ways: dict[str, Callable[[], object]] = {
            "tape": lambda: by_tape(self._empty_ledger()).gradients(weights),
            "loop": lambda: self._loop().gradients(weights),
        }
        assert self._loop_key is not None
        fastest(self._loop_key, ways)

    def _may_replay(self, plan: Plan) -> bool:
        """Whether a step like this one can be a program."""
        instances = _instances(self.objectives)
        is_pass = instances is not None and instances.ndim == 1 and self._memory == "fast"
        return is_pass and can_compile(plan)

    def _program(
        self, graph: Graph, experience: Experience
    ) -> tuple[Compiled, list[Tensor]] | None:
        """The program for a plan, if there is one, and what it needs of this graph."""
        compiled = experience.compiled
        inputs = None if compiled is None else compiled.inputs(graph, self._key)
        return None if compiled is None or inputs is None else (compiled, inputs)

    def _recorded(self, graph: Graph, plan: Plan) -> Ledger:
        """A step with a plan that has been met before: it may be met again."""
        losses, experience = self.objectives.losses, experience_of(plan)
        assert isinstance(losses, Tensor)
        ledger, compiled = record(
            graph, plan, losses, self._tensors, self._scale, self._empty_ledger, self._key
        )
        experience.compiled, experience.is_unrecordable = compiled, compiled is None
        self._plan, self._paths = plan, None
        return ledger

    @cached_property
    def _key(self) -> Hashable:
        """What a program depends on that the graph does not show."""
        scale = "tensor" if isinstance(self._scale, Tensor) else self._scale
        types = tuple([tensor.dtype for tensor in self._tensors])
        return scale, types, self.objectives.dtype, self.objectives.device

    def _replay(
        self, compiled: Compiled, inputs: list[Tensor], graph: Graph, *, frees: bool
    ) -> Replay | None:
        losses = self.objectives.losses
        assert isinstance(losses, Tensor)
        return compiled.run(graph, inputs, losses, self._scale, retain_graph=not frees)

    def _compare(
        self,
        compiled: Compiled,
        inputs: list[Tensor],
        graph: Graph,
        plan: Plan,
        ledger: Ledger,
    ) -> None:
        """Forget a program that does something else than the code that it was recorded from."""
        replay = self._replay(compiled, inputs, graph, frees=False)
        if replay is None or not agree(replay, ledger, self._tensors):
            experience = experience_of(plan)
            experience.compiled, experience.is_unrecordable = None, True
            complain_of_program()

    def _empty_ledger(
        self, kind: type[Ledger] = Ledger, *, keeps: bool = True, notes: bool = False
    ) -> Ledger:
        return kind(
            self.objectives.m,
            self._dtype,
            self.objectives.device,
            room=sum(tensor.numel() for tensor in self._tensors) // 3,
            keeps=keeps,
            lean=self._memory == "low",
            notes=notes,
        )

    def _interpret(
        self,
        graph: Graph,
        known: KnownGraph,
        plan: Plan,
        ledger: Ledger,
        *,
        frees: bool = False,
    ) -> Ledger:
        recording = Recording(
            graph,
            known,
            plan,
            self.objectives,
            dict(enumerate(self._tensors)),
            self._scale,
            retain_graph=not frees,
        )
        recording.run(ledger)
        ledger.close()
        self._plan, self._paths = plan, recording.paths
        return ledger

    @cached_property
    def _dtype(self) -> torch.dtype:
        """The type to compute in."""
        types = {tensor.dtype.to_real() for tensor in self._tensors} | {self.objectives.dtype}
        return torch.float64 if torch.float64 in types else torch.float32

    @cached_property
    def _tensors(self) -> list[Tensor]:
        return [tensor for _, tensor in self.named]

    def _check_reached(self, plan: Plan) -> None:
        if not plan.reached:
            raise self._nothing_reached()

    def _nothing_reached(self) -> GraphError:
        return GraphError(
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

    def _certify(self, ledger: Ledger, graph: Graph, plan: Plan) -> list[Mismatch] | None:
        # Under autocast, parameters and losses are precise, but what is between them is not.
        types = {tensor.dtype.to_real() for tensor in self._tensors} | types_in(graph)
        eps = max(torch.finfo(dtype).eps for dtype in types)
        v = random_vector(ledger.G, spread=1e3 if eps > 1e-5 else 1e6)
        sizes = {k: column_count(tensor) for k, tensor in enumerate(self._tensors)}
        wrong = mismatches(ledger, v, self._ordinary_gradients, sizes, eps)
        if wrong is None:
            return None
        return [found for found in wrong if not set(found.parameters) <= plan.by_rows]


def _instances(objectives: Objectives) -> Tensor | None:
    """The losses of several instances; ``None`` if the rows are tasks, or one instance."""
    losses = objectives.losses
    if not isinstance(losses, Tensor) or objectives.kind == "tasks" or len(losses) == 1:
        return None
    return losses
