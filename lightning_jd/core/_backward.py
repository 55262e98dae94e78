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

    With J the Jacobian of the losses (one row per loss, one column per parameter entry), the
    gradient that is added to ``.grad`` is

    .. math:: \mathcal A(J) = J^\top w, \qquad w = \text{weights}(J J^\top).

    Gradients are added to what ``.grad`` holds, and hooks of the parameters run, as with
    ``Tensor.backward``.

    Args:
        losses: A 1-D tensor (one loss per instance), a 2-D tensor (instance and task), a list of
            scalars, or a dict of named scalars, where ``None`` is a task without a loss.
        params: A module, tensors or (name, tensor) pairs; those that require no gradient are left
            out.
        aggregator: A name such as ``"upgrad"``, an aggregator or balancer, or a dict with its name
            and arguments. One that keeps a state must be an object, the same in every call.
        select: The parameters that are aggregated: ``"all"``; ``"shared"``, those that more than
            one task reaches; a name pattern (``"encoder.*"``) or a list of them; or a function of
            name and parameter. The others get their plain gradient, that of the sum over tasks of
            the mean over instances. So a head keeps the gradient of its own loss.
        groups: ``None`` to aggregate all selected parameters together, ``"layer"`` for one
            aggregation per module, or a function from the name of a parameter to its group. Every
            group costs a backward pass of its own.
        memory: ``"fast"`` keeps activation gradients; ``"low"`` keeps less, and ends with an
            ordinary backward where that would still be much.
        retain_graph: Whether the losses can be differentiated again afterwards; otherwise their
            graph may be freed.
        split: How a scalar is read: ``"terms"`` of its sum, ``"instances"`` of its batch,
            ``"auto"``, or a dict with ``by`` and ``names``, see
            :class:`lightning_jd.engines.Split`. ``None`` makes a scalar one objective.
        weights_from: What weights are computed from: the gradients at the ``"parameters"``; those
            at the ``"features"``, the activations where tasks part; at the last activations of a
            module, by its name or a pattern of names; or at an activation. See
            :class:`lightning_jd.aggregators.FromFeatures`.

    Returns:
        Gramian, weights, the path that each parameter took, and milliseconds.

    Raises:
        NonFiniteError: If a loss, or the gradient of one, is NaN or infinite.
        GraphError: If a loss does not require a gradient, or none reaches a parameter.

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
    if split is not None and isinstance(losses, Tensor) and losses.ndim == 0:
        losses = split_loss(losses, split)
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
