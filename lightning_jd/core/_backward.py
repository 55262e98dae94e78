"""Jacobian descent in plain PyTorch: the line that replaces ``loss.backward()``."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lightning_jd.aggregators import AggregatorSpec
from lightning_jd.core._loop import Loop
from lightning_jd.core._options import MemoryOption, Nonfinite, RowsOption
from lightning_jd.core._renamed import old_names
from lightning_jd.core._report import Report
from lightning_jd.core._two_samples import in_halves
from lightning_jd.engines import (
    Groups,
    Losses,
    Objectives,
    Parameters,
    Select,
    SplitSpec,
    TapeOptions,
)


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
        depth=3,
    )
    named = loop.named()
    objectives, reduction = loop.read(losses, named)
    objectives = in_halves(loop.method, objectives)
    collected = loop.start(named, objectives, reduction, keeps=False, retain_graph=retain_graph)
    loop.add(collected, objectives, reduction)
    return loop.finish(collected, reduction, retain_graph)
