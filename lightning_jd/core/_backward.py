"""Jacobian descent in plain PyTorch: the line that replaces ``loss.backward()``."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from lightning_jd.aggregators import AggregatorSpec, with_cheaper_weights
from lightning_jd.core._calls import method_of_call
from lightning_jd.core._groups import Groups
from lightning_jd.core._halves import in_halves
from lightning_jd.core._report import Report
from lightning_jd.core._slow import warn_slow
from lightning_jd.core._step import compute_update
from lightning_jd.core.rows._live import LiveRows
from lightning_jd.engines import (
    Losses,
    Objectives,
    Parameters,
    Select,
    SplitSpec,
    named_parameters_of,
    split_loss,
)


def backward(
    losses: Losses | Objectives,
    params: Parameters,
    aggregator: AggregatorSpec,
    *,
    select: Select = "all",
    groups: Groups = None,
    memory: Literal["fast", "low"] = "fast",
    retain_graph: bool = False,
    split: SplitSpec = None,
    weights_from: str | Tensor = "parameters",
) -> Report:
    r"""Aggregate the gradients of several losses into ``.grad``.

    With J the Jacobian of the losses (one row per loss, one column per parameter entry), it adds to
    ``.grad``

    .. math:: \mathcal A(J) = J^\top w, \qquad w = \text{weights}(J J^\top).

    As with ``Tensor.backward``, the gradient is accumulated into ``.grad`` and parameter hooks run.

    Args:
        losses: A 1-D tensor (one loss per instance), a 2-D tensor (instance and task), a list of
            scalars, or a dict of named scalars; ``None`` marks a task without a loss.
        params: A module, tensors or (name, tensor) pairs; tensors that require no gradient are
            ignored.
        aggregator: A name such as ``"upgrad"``, a dict with a name and arguments, or an aggregator
            or balancer. A stateful one must be the same object in every call.
        select: The parameters to aggregate: ``"all"``; ``"shared"`` for those that more than one
            task reaches; a name pattern (``"encoder.*"``) or a list of patterns; or a function of
            name and parameter. The other parameters get their plain gradient: the sum over tasks of
            the mean over instances. So each head keeps the gradient of its own loss.
        groups: ``None`` to aggregate all selected parameters together, ``"layer"`` to aggregate
            each module separately, or a function from a parameter name to its group. Each group
            costs one more backward pass.
        memory: ``"fast"`` stores activation gradients. ``"low"`` stores fewer, and runs a second
            backward pass where they are large.
        retain_graph: Whether to keep the graph, so that the losses can be differentiated again.
        split: How to split a scalar loss: into the ``"terms"`` of its sum, into the ``"instances"``
            of its batch, ``"auto"``, or a dict with ``by`` and ``names``
            (:class:`lightning_jd.engines.Split`). With ``None``, a scalar is one objective.
        weights_from: The gradients from which the weights are computed: ``"parameters"``;
            ``"features"`` for those at the activations where the tasks branch; the name (or a name
            pattern) of a module, for those at its output; or an activation. See
            :class:`lightning_jd.aggregators.FromFeatures`.

    Returns:
        The report: Gramian, weights, the path of each parameter, timings.

    Raises:
        NonFiniteError: If a loss or a gradient is NaN or infinite.
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
    if split is not None and isinstance(losses, Tensor) and losses.numel() == 1:
        losses = split_loss(losses, split, parameters=named_parameters_of(params))
    method = with_cheaper_weights(method_of_call(aggregator), weights_from)
    objectives = in_halves(method, Objectives.of(losses))
    rows = LiveRows(
        named_parameters_of(params),
        select=select,
        memory=memory,
        retain_graph=retain_graph,
        can_skip=False,
    )
    rows.add(objectives)
    update = compute_update(rows, method, groups=groups)
    warn_slow(update.report.slow, stacklevel=2)
    update.deliver(retain_graph)
    return update.report
