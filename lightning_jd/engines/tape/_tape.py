"""The tape: Gramian first, then the gradients for the chosen weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypeVar

import torch
from torch import Tensor

from lightning_jd.engines._objectives import Objectives
from lightning_jd.engines._parameters import column_count, from_columns
from lightning_jd.engines.tape._extracts import Extract
from lightning_jd.engines.tape._step import Outcome, may_loop, run_step
from lightning_jd.engines.tape.contributions import Contribution
from lightning_jd.engines.tape.run import (
    Check,
    Collector,
    Ledger,
    Loop,
    Replay,
    Request,
    TapeOptions,
)

_Result = TypeVar("_Result")
_Extract = TypeVar("_Extract", bound=Extract)


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
        ArgumentError: If an option is none of these.

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
        check: Check = "auto",
        check_every: int = TapeOptions.check_every,
        retain_graph: bool = True,
    ) -> None:
        options = TapeOptions(memory, check, check_every)
        self._request = Request(
            objectives, list(named_params), scale, options, retain_graph=retain_graph
        )
        self._outcome: Outcome | None = None

    @property
    def objectives(self) -> Objectives:
        """The losses."""
        return self._request.objectives

    @property
    def named(self) -> list[tuple[str, Tensor]]:
        """Names and parameters."""
        return self._request.named

    @property
    def paths(self) -> dict[str, str]:
        """How each parameter was dealt with, by name; empty before :meth:`gramian`."""
        if self._outcome is None:
            return {}
        plan, paths = self._outcome.plan, self._outcome.paths
        if paths is None:
            assert plan is not None
            paths = plan.rule_paths
        return {name: paths.get(k, "unreached") for k, (name, _) in enumerate(self.named)}

    @property
    def is_replayed(self) -> bool:
        """Whether the step was a program, so that one pass served all parameters."""
        return self._outcome is not None and isinstance(self._outcome.ledger, Replay)

    @property
    def is_hooked(self) -> bool:
        """Whether foreign hooks may be in the graph, which is kept then; unknown of small tasks."""
        return self._outcome is not None and self._outcome.is_hooked

    @property
    def lost_at(self) -> dict[str, str]:
        """The operation at which rows could not be followed further, where that happened."""
        plan = None if self._outcome is None else self._outcome.plan
        found = {} if plan is None else plan.lost_at
        return {self.named[k][0]: name for k, name in found.items()}

    def gramian(self) -> Tensor:
        """The matrix of inner products of the gradients of the objectives, shape (m, m).

        Float32, or float64 if a loss or a parameter is; computed once.

        Raises:
            GraphError: If no loss depends on a parameter, or autograd cannot see through a
                checkpoint, or a certificate fails and ``check`` is ``"raise"``.
        """
        if self._outcome is None or isinstance(self._outcome.ledger, Collector):
            self._outcome = self._precisely(partial(run_step, self._request))
        return self._outcome.ledger.G

    def gradients_beside(self, others: Sequence[Tensor]) -> list[Tensor | None] | None:
        """The gradients of the sum of the losses, if the passes for the Gramian give them, too.

        Args:
            others: Parameters that the Gramian is not about, as the heads of tasks.

        Returns:
            One per parameter, ``None`` if no loss reaches it; ``None`` altogether if the Gramian
            does not come from one pass per task.

        Raises:
            GraphError: As :meth:`gramian`.
        """
        if self._outcome is not None or not may_loop(self._request):
            return None
        self._outcome = self._precisely(partial(run_step, self._request, beside=others))
        assert isinstance(self._outcome.ledger, Loop)
        return self._outcome.ledger.beside

    def contributions(self) -> list[Contribution]:
        """The terms whose products add up to the Gramian, for rows on several processes.

        Nothing is multiplied here but where a certificate is due. Contributions to one parameter
        have different entries of it; parameters that no loss reaches have none. They are kept for
        :meth:`gradients`, with any ``memory``.

        Raises:
            GraphError: As :meth:`gramian`.
        """
        if self._outcome is None or not isinstance(self._outcome.ledger, Collector):
            self._outcome = self._precisely(partial(run_step, self._request, collects=True))
        assert isinstance(self._outcome.ledger, Collector)
        return list(self._outcome.ledger.contributions)

    def like(self) -> Tensor:
        """An empty tensor of the type and on the device of the Gramian."""
        return torch.empty(0, dtype=self._request.dtype, device=self.objectives.device)

    def extract(self, what: _Extract, *, keeps: bool = False) -> _Extract:
        """Compute something else than the Gramian of the contributions.

        Args:
            what: Takes them, and holds the result.
            keeps: Whether they are kept for :meth:`gradients`, as by :meth:`contributions`.

        Raises:
            GraphError: As :meth:`gramian`.
        """
        step = partial(run_step, self._request, collects=keeps, extract=what)
        outcome = self._precisely(step)
        if keeps:
            self._outcome = outcome
        return what

    def hold(self, contribution: Contribution, others: Sequence[Contribution]) -> None:
        """Compute gradients from other contributions in the place of one of :meth:`contributions`.

        Args:
            contribution: One of them.
            others: The same in another form, as rows that have been formed anyway.
        """
        assert self._outcome is not None
        assert isinstance(self._outcome.ledger, Collector)
        self._outcome.ledger.hold(contribution, others)

    def jacobian(self) -> Tensor:
        """The gradients of the objectives, one row each, shape (m, n), in the type of the Gramian.

        For instances it costs about as much as the Gramian, not one backward pass per row.

        Raises:
            GraphError: As :meth:`gramian`.
        """
        return self._precisely(self._jacobian)

    def _jacobian(self) -> Tensor:
        contributions = self.contributions()
        sizes = [column_count(tensor) for tensor in self._request.tensors]
        J = torch.zeros(
            *(self.objectives.m, sum(sizes)),
            dtype=self._request.dtype,
            device=self.objectives.device,
        )
        columns = J.split(sizes, dim=1)
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
        if self._outcome is None:
            self.gramian()
        assert self._outcome is not None
        plan = self._outcome.plan
        found = self._precisely(partial(self._shaped, self._outcome.ledger, weights.detach()))
        for k in () if plan is None else plan.sparse & found.keys():
            found[k] = found[k].to_sparse(1)  # its optimizer demands it
        return [found.get(k) for k in range(len(self._request.named))]

    def _shaped(self, ledger: Ledger | Replay | Loop, weights: Tensor) -> dict[int, Tensor]:
        """The gradients of reached parameters, in their shape and type."""
        weights, request = weights.to(ledger.G), self._request
        found = ledger.gradients(weights)
        if not isinstance(ledger, Ledger):
            return found
        if ledger.unkept:
            unkept, keep = sorted(ledger.unkept), request.retain_graph
            found |= request.ordinary_gradients(weights, unkept, retain_graph=keep)
        return {k: from_columns(found[k], request.tensors[k]) for k in found}

    def _precisely(self, compute: Callable[[], _Result]) -> _Result:
        """Compute without autograd and without autocast."""
        device = self._request.device.type
        if torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                return self._precisely(compute)
        if torch.is_grad_enabled():
            with torch.no_grad():
                return compute()
        return compute()
