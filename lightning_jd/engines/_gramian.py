"""The Gramian of the losses, in one call."""

from __future__ import annotations

from torch import Tensor

from lightning_jd.engines._objectives import Losses, Objectives
from lightning_jd.engines._parameters import Parameters, whole_parameters_of
from lightning_jd.engines.tape import Half, Tape, cross


def gramian(
    losses: Losses | Objectives, params: Parameters, *, other: Losses | Objectives | None = None
) -> Tensor:
    r"""Inner products of the gradients of the losses, without forming the gradients.

    With J the Jacobian of the m losses, one row per loss, this is :math:`G = J J^\top`. It costs
    about one backward pass if the losses belong to instances that do not mix, one backward pass per
    task for tasks, and never the memory of J. The graph is kept.

    Args:
        losses: A 1-D tensor (one loss per instance), a 2-D tensor (instance and task), a list of
            scalars or a dict of named scalars.
        params: A module, tensors or (name, tensor) pairs; those that require no gradient are left
            out.
        other: Other losses of the same parameters, n of them, such as those of a validation batch.
            With K their Jacobian, the result is :math:`J K^\top`; neither square is computed.

    Returns:
        G, shape (m, m), or (m, n) with ``other``; float64 if a loss or a parameter is, else
        float32.

    Raises:
        GraphError: If no loss depends on a parameter, or autograd cannot see a part of the model.
        SetupError: If parameters are in pieces on several processes (FSDP2).

    Example:
        >>> import torch
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> gramian([x.sum(), x.prod()], [x])
        tensor([[2., 3.],
                [3., 5.]])
        >>> gramian([x.sum(), x.prod()], [x], other=[x[0]])
        tensor([[1.],
                [2.]])
    """
    named = whole_parameters_of(params)
    here = Tape(Objectives.of(losses), named, memory="low")
    if other is None:
        return here.gramian()
    there = Tape(Objectives.of(other), named, memory="low")
    return cross(Half.of(here), Half.of(there))
