"""The Gramian of the losses, in one call."""

from __future__ import annotations

from torch import Tensor

from lightning_jd.engines._objectives import Losses, Objectives
from lightning_jd.engines._parameters import Parameters, named_parameters_of
from lightning_jd.engines.tape import Tape


def gramian(losses: Losses | Objectives, params: Parameters) -> Tensor:
    r"""Inner products of the gradients of the losses, without forming the gradients.

    With J the Jacobian of the m losses, one row per loss, this is :math:`G = J J^\top`. It costs
    about one backward pass if the losses belong to instances that do not mix, one backward pass per
    task for tasks, and never the memory of J. The graph is kept.

    Args:
        losses: A 1-D tensor (one loss per instance), a 2-D tensor (instance and task), a list of
            scalars or a dict of named scalars.
        params: A module, tensors or (name, tensor) pairs; those that require no gradient are left
            out.

    Returns:
        G, shape (m, m), float64 if a loss or a parameter is, else float32.

    Raises:
        GraphError: If no loss depends on a parameter, or autograd cannot see a part of the model.

    Example:
        >>> import torch
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> gramian([x.sum(), x.prod()], [x])
        tensor([[2., 3.],
                [3., 5.]])
    """
    return Tape(Objectives.of(losses), named_parameters_of(params), memory="low").gramian()
