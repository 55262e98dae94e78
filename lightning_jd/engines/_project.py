"""Random projections of the gradients of the losses, in one call."""

from __future__ import annotations

from torch import Tensor

from lightning_jd.engines._objectives import Losses, Objectives
from lightning_jd.engines._parameters import Parameters, whole_parameters_of
from lightning_jd.engines.tape import Projections, Tape
from lightning_jd.errors import ArgumentError


def project(losses: Losses | Objectives, params: Parameters, *, dim: int, seed: int = 0) -> Tensor:
    r"""Random projections :math:`J R` of the gradients of the losses to a few dimensions.

    Inner products and distances of the projections estimate those of the gradients: with
    :math:`\hat g, \hat h` the projections of g and h, the mean of
    :math:`\langle \hat g, \hat h \rangle` over R is :math:`\langle g, h \rangle`, and its variance
    is at most :math:`(\lVert g \rVert^2 \lVert h \rVert^2 + \langle g, h \rangle^2) / \text{dim}`.
    Neither J nor R is ever held. R depends on the seed and on the names and sizes of the
    parameters only, so that projections from different batches, processes and devices can be
    compared. It costs about as much as :func:`~lightning_jd.gramian`, and four additions per
    parameter and loss.

    Args:
        losses: A 1-D tensor (one loss per instance), a 2-D tensor (instance and task), a list of
            scalars or a dict of named scalars.
        params: A module, or (name, tensor) pairs; tensors alone are named by their position.
        dim: The number of dimensions. A multiple of four gives the least variance in the fourth
            moment: there are four nonzero numbers per row of R then, else two or one.
        seed: Another seed is another R.

    Returns:
        Shape (m, dim), float64 if a loss or a parameter is, else float32.

    Raises:
        ArgumentError: If ``dim`` is less than 1.
        ShapeError: If there is one loss for the whole batch.
        GraphError: If no loss depends on a parameter, or autograd cannot see a part of the model.
        SetupError: If parameters are in pieces on several processes (FSDP2).

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(1000, 1)
        >>> losses = model(torch.ones(3, 1000)).flatten()  # three equal gradients
        >>> project(losses, model, dim=64).shape
        torch.Size([3, 64])

    References:
        Kane and Nelson, *Sparser Johnson-Lindenstrauss Transforms*, J. ACM 2014.
    """
    if isinstance(dim, bool) or not isinstance(dim, int) or dim < 1:
        raise ArgumentError(f"`dim` must be a positive integer, got {dim!r}.")
    named = whole_parameters_of(params)
    tape = Tape(Objectives.of(losses).each(), named, memory="low")
    total = tape.extract(Projections(dim, seed, [name for name, _ in named])).total
    assert total is not None
    return total.to(tape.like())
