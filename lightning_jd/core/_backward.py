"""Jacobian descent in plain PyTorch: the line that replaces ``loss.backward()``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lightning_jd.aggregators import AggregatorSpec, Method, method_of_call, with_cheaper_weights
from lightning_jd.core._arguments import (
    MemoryOption,
    Nonfinite,
    RowsOption,
    check_options,
    old_names,
)
from lightning_jd.core._losses import in_halves, objectives_of
from lightning_jd.core._report import Report, warn_slow
from lightning_jd.core._step import compute_update
from lightning_jd.core.processes._ddp import (
    Reduction,
    check_all_reached,
    first_reduction_held,
    reduction_of,
    start_first_reduction,
    unwrapped,
)
from lightning_jd.core.processes._delivery import COMPLETE
from lightning_jd.core.processes._pool import ALONE, Pool
from lightning_jd.core.rows import collect
from lightning_jd.core.rows._base import Rows
from lightning_jd.core.rows._shards import is_sharded, show_pieces
from lightning_jd.engines import (
    Groups,
    Losses,
    NamedParameters,
    Objectives,
    Parameters,
    Select,
    SplitSpec,
    TapeOptions,
    named_parameters_of,
    split_loss,
)
from lightning_jd.errors import ArgumentError, NonFiniteError


@old_names(model=1)
def backward(
    losses: Losses | Objectives,
    model: Parameters,
    aggregator: AggregatorSpec = "upgrad",
    *,
    params: Select = "all",
    rows: RowsOption | None = None,
    groups: Groups = None,
    nonfinite: Nonfinite = "raise",
    memory: MemoryOption = "fast",
    check_every: int = 1000,
    retain_graph: bool = False,
    split: SplitSpec = None,
    weights_from: str | Tensor = "parameters",
    scaler: Any = None,
) -> Report:
    r"""Aggregate the gradients of several losses into ``.grad``.

    With J the Jacobian of the losses (one row per loss, one column per parameter entry), it adds to
    ``.grad``

    .. math:: \mathcal A(J) = J^\top w, \qquad w = \text{weights}(J J^\top).

    As with ``Tensor.backward``, the gradient is accumulated into ``.grad`` and parameter hooks run.

    Args:
        losses: A 1-D tensor (one loss per instance), a 2-D tensor (instance and task), a list of
            scalars, or a dict of named scalars; ``None`` marks a task without a loss.
        model: A module, tensors or (name, tensor) pairs; tensors that require no gradient are
            ignored. If the losses come from a model in DistributedDataParallel, all processes are
            aggregated together, and the update equals that of one process on the whole batch.
        aggregator: A name such as ``"upgrad"``, a dict with a name and arguments, or an aggregator
            or balancer. A stateful one must be the same object in every call.
        params: The parameters to aggregate: ``"all"``; ``"shared"`` for those that more than one
            task reaches; a name pattern (``"encoder.*"``) or a list of patterns; or a function of
            name and parameter. The other parameters get their plain gradient: the sum over tasks of
            the mean over instances. So each head keeps the gradient of its own loss.
        rows: What one objective is, if the type of the losses does not imply it: ``"tasks"`` or
            ``"instances"``; a matrix of losses is averaged over the other dimension. With
            ``"ranks"``, the scalar loss of each process is one objective.
        groups: ``None`` to aggregate all selected parameters together, ``"layer"`` to aggregate
            each module separately, or a function from a parameter name to its group. Each group
            costs one more backward pass.
        nonfinite: ``"raise"`` an error if a loss or a gradient is NaN or infinite, or ``"skip"``
            the objective.
        memory: ``"fast"`` stores activation gradients. ``"low"`` stores fewer, and runs a second
            backward pass where they are large.
        check_every: The number of steps between two certificates, which compare the Gramian and the
            gradients with an ordinary backward pass. The first step is certified too.
        retain_graph: Whether to keep the graph, so that the losses can be differentiated again.
        split: How to split a scalar loss: into the ``"terms"`` of its sum, into the ``"instances"``
            of its batch, ``"auto"``, or a dict with ``by`` and ``names``
            (:class:`lightning_jd.engines.Split`). With ``None``, a scalar is one objective,
            which raises a warning.
        weights_from: The gradients from which the weights are computed: ``"parameters"``;
            ``"features"`` for those at the activations where the tasks branch; the name (or a name
            pattern) of a module, for those at its output; or an activation. See
            :class:`lightning_jd.aggregators.FromFeatures`.
        scaler: The ``torch.amp.GradScaler`` of a loop in fp16. Pass the losses unscaled; ``.grad``
            is scaled. If gradients overflow, ``scaler.step`` skips the step and ``scaler.update``
            lowers the scale, as in plain training.

    Returns:
        The report: Gramian, weights, the path of each parameter, timings.

    Raises:
        NonFiniteError: If a loss or a gradient is NaN or infinite and ``nonfinite="raise"``.
        GraphError: If a loss does not require a gradient, or no loss reaches a parameter.

    Example:
        >>> import torch
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> report = backward([3 * x[0], 4 * x[1]], [x], "mean")
        >>> x.grad
        tensor([1.5000, 2.0000])
        >>> report.gramian, report.weights
        (tensor([[ 9.,  0.],
                [ 0., 16.]]), tensor([0.5000, 0.5000]))
    """
    loop = Loop.of(
        model,
        aggregator,
        weights_from,
        params=params,
        rows=rows,
        groups=groups,
        nonfinite=nonfinite,
        options=TapeOptions(memory, check_every=check_every),
        split=split,
        scaler=scaler,
        depth=4,
    )
    return loop.step(losses, retain_graph)


_FIND_UNUSED = "Pass `find_unused_parameters=True` to DistributedDataParallel"


@dataclass(frozen=True)
class Loop:
    """The arguments of :func:`lightning_jd.backward`, and the parts of a step.

    Raises:
        ArgumentError: If an argument has an invalid value.
    """

    model: Parameters
    method: Method
    params: Select
    rows: RowsOption | None
    groups: Groups
    nonfinite: Nonfinite
    options: TapeOptions
    split: SplitSpec
    scaler: Any
    #: The calls between the user's line and the methods here, for warnings.
    depth: int
    #: What runs the backward pass of a scalar, and scales it; ``None`` for autograd itself.
    deliver: Callable[..., object] | None = None

    @classmethod
    def of(
        cls,
        model: Parameters,
        aggregator: AggregatorSpec,
        weights_from: str | Tensor,
        **others: Any,
    ) -> Loop:
        """Read the arguments."""
        method = with_cheaper_weights(method_of_call(aggregator), weights_from)
        return cls(model, method, **others)

    def __post_init__(self) -> None:
        check_options(rows=self.rows, nonfinite=self.nonfinite)
        if self.scaler is not None and not hasattr(self.scaler, "is_enabled"):
            raise ArgumentError(
                f"`scaler` must be a torch.amp.GradScaler, got {type(self.scaler).__name__}."
            )

    def step(self, losses: Losses | Objectives, retain_graph: bool = False) -> Report:
        """Aggregate the losses of one batch."""
        named = self.named()
        objectives, reduction = self.read(losses, named)
        objectives = in_halves(self.method, objectives)
        rows = self.start(named, objectives, reduction, keeps=False, retain_graph=retain_graph)
        self.add(rows, objectives, reduction)
        return self.finish(rows, reduction, retain_graph)

    def named(self) -> NamedParameters:
        """The parameters."""
        model = unwrapped(self.model)
        if isinstance(model, nn.Module) and Pool().size > 1:
            show_pieces(model)
        return named_parameters_of(model)

    def read(
        self, losses: Losses | Objectives, named: NamedParameters
    ) -> tuple[Objectives, Reduction | None]:
        """The losses as objectives, and who reduces their gradients."""
        if isinstance(losses, map):  # what a GradScaler makes of a dict or list
            raise ArgumentError(
                "`losses` must be a tensor, a list of scalars or a dict of named scalars, got map. "
                "Instead of scaler.scale(losses), pass the losses and scaler=scaler."
            )
        is_one = isinstance(losses, Tensor) and losses.numel() == 1 and losses.ndim < 2
        if is_one and self.rows is None:
            assert isinstance(losses, Tensor)
            if self.split is not None:
                losses = split_loss(losses, self.split, parameters=named)
            elif losses.ndim == 0:
                warnings.warn(
                    "`losses` is one scalar, so there is one objective and nothing to aggregate. "
                    "Pass one loss per example (reduction='none') or per task, or split='auto' to "
                    "split the scalar. For a single task, pass {'name': loss}.",
                    UserWarning,
                    stacklevel=1 + self.depth,
                )
        objectives = objectives_of(losses, self.rows)
        reduction = reduction_of(self.model, objectives, named)
        if objectives.m == 0 and reduction is None and not is_sharded(named):
            Objectives.of(losses)  # on a process of its own, there must be a loss
        return objectives, reduction

    def start(
        self,
        named: NamedParameters,
        objectives: Objectives,
        reduction: Reduction | None,
        *,
        keeps: bool,
        retain_graph: bool = False,
    ) -> Rows:
        """Rows that take the losses."""
        is_alone = reduction is None and not is_sharded(named)
        return collect(
            named,
            select=self.params,
            nonfinite=self.nonfinite,
            keeps=keeps or (not is_alone and objectives.kind == "ranks"),
            options=self.options,
            retain_graph=retain_graph,
            pool=ALONE if is_alone else None,
        )

    def add(self, rows: Rows, objectives: Objectives, reduction: Reduction | None) -> None:
        """Hand the losses of a micro-batch over."""
        scale = loss_scale(self.scaler, objectives.device, objectives.m)
        with _undisturbed(rows, reduction):
            rows.add(objectives, scale=1.0 if scale is None else scale)

    def finish(self, rows: Rows, reduction: Reduction | None, retain_graph: bool) -> Report:
        """Add the gradients of all rows to ``.grad``."""
        scaled = self.scaler is not None and self.scaler.is_enabled()
        try:
            with _undisturbed(rows, reduction):
                update = compute_update(
                    rows,
                    self.method,
                    groups=self.groups,
                    overflow="mean" if scaled else "raise",
                    delivery=COMPLETE if reduction is None else reduction.delivery,
                )
        except NonFiniteError as error:
            if scaled or not str(error).startswith("Gradients"):
                raise
            raise NonFiniteError(
                f"{error} If a GradScaler has scaled the losses: pass them unscaled, and the "
                "argument scaler=scaler, which lets it lower its scale."
            ) from error
        if update.report.slow:
            warn_slow(update.report.slow, stacklevel=1 + self.depth)
        if reduction is None and not scaled and self.deliver is None:
            update.deliver(retain_graph)
            return update.report
        wrapper = None if reduction is None else reduction.wrapper
        shared = self.params == "shared"
        check_all_reached(wrapper, rows.named, update.params, _FIND_UNUSED, shared=shared)
        scalar = update.surrogate()
        start_first_reduction(wrapper, scalar)
        # An ordinary backward pass would reach other leaves too.
        inputs = None if update.combined is None else update.params
        if self.deliver is not None:
            self.deliver(scalar, **({} if inputs is None else {"inputs": inputs}))
            return update.report
        torch.autograd.backward(
            self.scaler.scale(scalar) if scaled else scalar,
            retain_graph=retain_graph and inputs is not None,
            inputs=inputs,
        )
        return update.report


@contextmanager
def _undisturbed(rows: Rows, reduction: Reduction | None) -> Iterator[None]:
    """Neither autocast nor a reduction of gradients, while losses are differentiated."""
    device = rows.named[0][1].device
    if reduction is None and not torch.is_autocast_enabled(device.type):
        yield
        return
    with full_precision(device), first_reduction_held(reduction and reduction.wrapper):
        yield


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Leave autocast and half-precision defaults, in which ``manual_backward`` is called.

    Example:
        >>> with torch.autocast("cpu", dtype=torch.bfloat16), full_precision(torch.device("cpu")):
        ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
        torch.float32
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_default_dtype(default)


def loss_scale(scaler: Any, device: torch.device, terms: int) -> Tensor | None:
    """The factor for every loss if there is a GradScaler that is in use.

    In plain training the loss is a mean of ``terms`` losses, each of which gets the scale divided
    by their number. With the same factor, rows overflow where plain training does, and no sooner.
    """
    if scaler is None or not scaler.is_enabled():
        return None
    scale: Tensor = scaler.scale(torch.ones((), device=device))
    return scale / max(terms, 1)  # a process of several may have no loss
