"""The Gramians that aggregators are timed on: from harmless to what a trained network gives."""

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.lab.bench._runs import run_early, run_late, run_start
from examples.lab.work.paper import paper_cnn
from lightning_jd.errors import ArgumentError

_IMAGES = 1024  # the largest Gramian that the network's family offers
_BLOCK = 256  # per-image gradients are made in blocks, as many as are asked for


def gaussian(m: int) -> Tensor:
    """Independent normal rows in 2m dimensions: half of the pairs conflict, none strongly."""
    J = _normal(m, 2 * m)
    return J @ J.T


def conflicting(m: int) -> Tensor:
    """Two camps with cosines of about 0.8 inside and -0.8 across; norms from 1e-2 to 1e2."""
    J = _normal(m, 2 * m)
    J[:, 0] = 2 * math.sqrt(2 * m) * torch.tensor([1.0, -1.0]).repeat(m)[:m]
    J *= torch.logspace(-2, 2, m, dtype=J.dtype)[:, None] / J.norm(dim=1, keepdim=True)
    return J @ J.T


def uneven(m: int) -> Tensor:
    """Rows in conflict with nearly all others, of norms from 1e-4 to 1e4, as of tasks in units."""
    J = _normal(m, 2 * m)
    J -= 0.95 * J.mean(dim=0)
    J *= torch.logspace(-4, 4, m, dtype=J.dtype)[:, None] / J.norm(dim=1, keepdim=True)
    return J @ J.T


def low_rank(m: int) -> Tensor:
    """Four times as many objectives as parameters (but at least one parameter)."""
    J = _normal(m, max(1, m // 4))
    return J @ J.T


def duplicates(m: int) -> Tensor:
    """Each row appears twice (the last one once if m is odd)."""
    J = _normal((m + 1) // 2, m).repeat_interleave(2, dim=0)[:m]
    return J @ J.T


def network(m: int) -> Tensor:
    """One row per image: the gradients of a convolutional network in the middle of its training.

    The images are ten smooth patterns under noise from faint to overwhelming, a few with a wrong
    label: most gradients are small by now, some a thousand times larger and in conflict with them.

    Raises:
        ArgumentError: If ``m`` is beyond the number of images.
    """
    if m > _IMAGES:
        raise ArgumentError(f"`m` must be at most {_IMAGES} for the network, got {m}.")
    blocks = [_gradients(block) for block in range(-(-m // _BLOCK))]
    J = torch.cat(blocks)[:m].double()
    return J @ J.T


FAMILIES: dict[str, Callable[[int], Tensor]] = {
    "gaussian": gaussian,
    "conflicting": conflicting,
    "uneven": uneven,
    "low_rank": low_rank,
    "duplicates": duplicates,
    "network": network,
    "run_start": run_start,
    "run_early": run_early,
    "run_late": run_late,
}


def _normal(rows: int, columns: int) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64)


@cache
def _trained() -> tuple[nn.Sequential, Tensor, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = paper_cnn("svhn")
        patterns = functional.interpolate(torch.randn(10, 3, 5, 5), size=32, mode="bilinear")
        labels = torch.randint(10, (_IMAGES,))
        noise = torch.logspace(-1, 0.5, _IMAGES)[torch.randperm(_IMAGES)].reshape(-1, 1, 1, 1)
        images = patterns[labels] + noise * torch.randn(_IMAGES, 3, 32, 32)
        wrong = torch.rand(_IMAGES) < 0.03
        labels = torch.where(wrong, torch.randint(10, (_IMAGES,)), labels)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for x, y in 3 * list(zip(images.split(32), labels.split(32), strict=True)):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model, images, labels


@cache
def _gradients(block: int) -> Tensor:
    model, images, labels = _trained()
    chosen = slice(block * _BLOCK, (block + 1) * _BLOCK)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        logits = torch.func.functional_call(model, parameters, (x[None],))
        return functional.cross_entropy(logits, y[None])

    per_image = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), chunk_size=64)
    gradients: dict[str, Tensor] = per_image(parameters, images[chosen], labels[chosen])
    return torch.cat([g.flatten(start_dim=1) for g in gradients.values()], dim=1)
