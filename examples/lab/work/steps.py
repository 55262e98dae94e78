"""One training step without the optimizer, by each engine, on the same kind of work."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from examples.lab.device import here
from examples.lab.work.networks import TrunkAndHeads, Work, mean_of
from lightning_jd.aggregators import GramianAggregator, resolve
from lightning_jd.core import backward
from lightning_jd.engines import gradient_norms, gramian
from lightning_jd.errors import UnknownNameError

Step = Callable[[], None]
OPPONENTS = ("autogram", "autojac")  # TorchJD's two engines
ENGINES = ("plain", "ours", "ours_low", "loop", *OPPONENTS)
EXTRACTS = ("gramian", "norms")  # what is computed of the gradients alone, without an update
#: What TorchJD calls the methods, from Gramians and from Jacobians.
_WEIGHTINGS = {
    "mean": "MeanWeighting",
    "upgrad": "UPGradWeighting",
    "mgda": "MGDAWeighting",
    "dualproj": "DualProjWeighting",
    "pcgrad": "PCGradWeighting",
    "imtlg": "IMTLGWeighting",
    "cagrad": "CAGradWeighting",
    "rgw": "RandomWeighting",
    "alignedmtl": "AlignedMTLWeighting",
}
_AGGREGATORS = {"mean": "Mean", "upgrad": "UPGrad", "graddrop": "GradDrop"}
_OPTIONS: dict[str, dict[str, float]] = {"cagrad": {"c": 0.5}}


def working_step(engine: str, build: Callable[[], Work], aggregator: str) -> Step | None:
    """Build a step from seed 0 and try it once.

    Returns:
        The step, or ``None`` if the engine is TorchJD's and is not installed, refuses the model, or
        needs more memory than there is.
    """
    torch.manual_seed(0)
    step = make_step(engine, build().to(here()), aggregator)
    if step is None:
        return None
    try:
        step()
    except Exception:
        if engine not in OPPONENTS:
            raise
        return None
    return step


def make_step(engine: str, work: Work, aggregator: str) -> Step | None:
    """Build a step: forward, and gradients in ``.grad``.

    Args:
        engine: One of :data:`ENGINES` or :data:`EXTRACTS`. ``"plain"`` differentiates the mean of
            the losses; the others compute the Gramian (or Jacobian), weights and the update;
            ``"loop"`` does so with one ``autograd.grad`` per loss.
        work: Its model is changed (TorchJD adds hooks): do not use it for another engine.
        aggregator: A name; TorchJD's engines know ``"mean"``, ``"upgrad"`` and some others.

    Returns:
        The step, or ``None`` if the engine is TorchJD's and that, or what it needs for the
        method, is not installed.
    """
    model = work.model
    if engine == "plain":
        return lambda: _plain(work)
    if engine in ("ours", "ours_low"):
        chosen, select = resolve(aggregator), "shared" if work.has_tasks else "all"
        memory: Literal["fast", "low"] = "low" if engine == "ours_low" else "fast"

        def ours() -> None:
            model.zero_grad(set_to_none=True)
            backward(work.losses(), model, chosen, params=select, memory=memory)

        return ours
    if engine in EXTRACTS:
        of_losses = gramian if engine == "gramian" else gradient_norms
        read = model.trunk if isinstance(model, TrunkAndHeads) else model

        def extract() -> None:
            of_losses(work.losses(), read)

        return extract
    if engine == "loop":
        return _loop(work, aggregator)
    if engine not in ENGINES:
        raise UnknownNameError.of("engine", engine, ENGINES)
    if importlib.util.find_spec("torchjd") is None:
        return None
    try:
        return _autogram(work, aggregator) if engine == "autogram" else _autojac(work, aggregator)
    except (ImportError, AttributeError):  # some of its methods need a solver of their own
        return None


def _plain(work: Work) -> None:
    work.model.zero_grad(set_to_none=True)
    mean_of(work.losses()).backward()


def _loop(work: Work, aggregator: str) -> Step:
    """What anybody would write: the gradient of each task, or of each example by itself; their
    Gramian; and their combination."""
    chosen = resolve(aggregator)
    assert isinstance(chosen, GramianAggregator)
    model = work.model
    shared = list((model.trunk if isinstance(model, TrunkAndHeads) else model).parameters())
    heads = list(model.heads) if isinstance(model, TrunkAndHeads) else []

    def step() -> None:
        model.zero_grad(set_to_none=True)
        rows = []
        for k, loss in enumerate(work.losses() if work.has_tasks else _one_by_one(work)):
            own = list(heads[k].parameters()) if heads else []
            found = torch.autograd.grad(loss, [*shared, *own], retain_graph=work.has_tasks)
            rows.append(found[: len(shared)])
            for parameter, gradient in zip(own, found[len(shared) :], strict=True):
                parameter.grad = gradient
        blocks = [torch.stack(found).flatten(start_dim=1) for found in zip(*rows, strict=True)]
        weights = chosen.weights(torch.stack([J @ J.T for J in blocks]).sum(dim=0))
        for parameter, J in zip(shared, blocks, strict=True):
            parameter.grad = (weights @ J).view_as(parameter)

    return step


def _one_by_one(work: Work) -> Iterator[Tensor]:
    """The loss of each example, alone in its batch."""
    for x, y in zip(work.x.split(1), work.y.split(1), strict=True):
        yield from replace(work, x=x, y=y).losses()


def _autogram(work: Work, aggregator: str) -> Step:
    from torchjd import aggregation
    from torchjd.autogram import Engine

    weighting = getattr(aggregation, _WEIGHTINGS[aggregator])(**_OPTIONS.get(aggregator, {}))
    tracked: nn.Module = work.model.trunk if isinstance(work.model, TrunkAndHeads) else work.model
    engine = Engine(tracked, batch_dim=None if work.has_tasks else 0)

    def step() -> None:
        work.model.zero_grad(set_to_none=True)
        losses = work.losses()
        vector = torch.stack(losses) if isinstance(losses, list) else losses
        vector.backward(weighting(engine.compute_gramian(vector)))

    return step


def _autojac(work: Work, aggregator: str) -> Step:
    from torchjd import aggregation, autojac

    chosen = getattr(aggregation, _AGGREGATORS[aggregator])()
    model = work.model

    def step() -> None:
        model.zero_grad(set_to_none=True)
        losses = work.losses()
        if isinstance(model, TrunkAndHeads) and isinstance(losses, list):
            autojac.mtl_backward(losses, features=model.features)
            autojac.jac_to_grad(model.trunk.parameters(), chosen)
        else:
            autojac.backward(losses)
            autojac.jac_to_grad(model.parameters(), chosen)

    return step
