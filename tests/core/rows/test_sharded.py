"""Parameters in pieces: rows of instances take one pass, and are those of one process."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from lightning_jd.aggregators import Step, UPGrad, resolve
from lightning_jd.core import collect, compute_update, show_pieces
from lightning_jd.core.processes import _columns
from lightning_jd.core.rows import _fsdp_tape, _sharded
from lightning_jd.core.rows._shards import leave_out_hooks
from lightning_jd.engines import Objectives, jacobian
from lightning_jd.engines.tape import OuterProduct
from tests.helpers.two_processes import run_in_two_processes


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 5), nn.Linear(5, 3, bias=False))


def convolutional() -> nn.Module:
    layers = [nn.Conv2d(1, 4, 2), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3)]
    return nn.Sequential(nn.Unflatten(1, (1, 2, 3)), *layers)


class Attention(nn.Module):
    """A table, an encoder layer, and a weight that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.encoder = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.tied, self.out = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.tied(self.encoder(self.table((x * 10).long().remainder(5)))).tanh()
        return self.out(self.tied(h).mean(dim=1))


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = nn.Sequential(nn.Linear(6, 4), nn.Tanh()), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(checkpoint(self.body, x, use_reentrant=False))


class Clipped(nn.Module):
    """Hooks that rules see too late, or not at all: on an activation, and on its operation."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h, out = self.body(x), self.out
        if h.grad_fn is not None:
            h.register_hook(lambda g: g * (0.1 / g.norm()).clamp(max=1))
            h.grad_fn.register_hook(lambda below, _: tuple([_clipped(g) for g in below]))
        return out(h.tanh())


def _clipped(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else gradient.clamp(-0.05, 0.05)


def instances(model: nn.Module, x: Tensor) -> Any:
    return model(x).square().mean(dim=1)


def matrix(model: nn.Module, x: Tensor) -> Any:
    return (model(x) - 1).square()


def shard(model: nn.Module, **options: Any) -> None:
    leave_out_hooks()  # an earlier test may have loaded the package before FSDP2
    mesh = init_device_mesh("cpu", (2,))
    for part in model.children():
        if any(True for _ in part.parameters()):
            fully_shard(part, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)


Passes = dict[str, int]


def step(
    model: nn.Module, losses: Any, micro_batches: int = 1, *, keeps: bool = False
) -> tuple[Any, Passes]:
    """One update, and how often all processes have run through the whole graph for it alone."""
    seen = {"passes": 0}
    original = _sharded.differentiated

    def counted(*args: Any) -> Tensor:
        seen["passes"] += 1
        return original(*args)

    with patch.object(_sharded, "differentiated", counted):
        rows = None
        for k in range(micro_batches):
            own = losses(k)
            show_pieces(model)
            rows = rows or collect(list(model.named_parameters()), keeps=keeps)
            rows.add(Objectives.of(own))
        assert rows is not None
        return compute_update(rows, resolve("upgrad")), seen


def compare(
    make: Callable[[], nn.Module],
    losses: Callable[[nn.Module, Tensor], Any],
    counts: tuple[int, int],
    rank: int,
    *,
    passes: int,
    micro_batches: int = 1,
    keeps: bool = False,
) -> None:
    torch.manual_seed(1)
    whole = make().double()
    model = make().double()
    model.load_state_dict(whole.state_dict())
    shard(model)
    for number in range(3):
        x = torch.randn(micro_batches, sum(counts), 6, dtype=torch.float64)
        parts = [piece.split(list(counts)) for piece in x]
        update, seen = step(
            model,
            lambda k, parts=parts: losses(model, parts[k][rank]),
            micro_batches,
            keeps=keeps,
        )
        # an ordinary pass certifies the first of its kind
        certificates = micro_batches - 1 if passes else int(number == 0)
        assert seen["passes"] <= passes + certificates, (make, number, seen)
        assert passes == 0 or seen["passes"] == passes
        named = list(whole.named_parameters())
        J = torch.cat(
            [jacobian(losses(whole, p[r]), named, chunk=1) for r in (0, 1) for p in parts]
        )
        exact = {"rtol": 1e-10, "atol": 1e-12}
        assert_close(update.report.gramian, J @ J.T, **exact)
        names, kind = tuple(map(str, range(len(J)))), "instances"
        if losses is matrix:
            names, kind = tuple(f"{i // 3}/{i % 3}" for i in range(len(J))), "instances_tasks"
        assert update.report.names == names
        w = UPGrad().weigh(J @ J.T, Step(names, kind=kind))
        direction = (w @ J).split([tensor.numel() for _, tensor in named])
        found = {id(p): g for p, g in zip(update.params, update.gradients, strict=True)}
        for (name, tensor), g in zip(named, direction, strict=True):
            piece: Any = found[id(dict(model.named_parameters())[name])]
            assert_close(piece.full_tensor().flatten(), g, **exact)
            assert tensor.grad is None


def work(rank: int, folder: Path) -> None:
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "FSDP2-wrapped module")
    for make in (mlp, convolutional, Attention):
        compare(make, instances, (3, 2), rank, passes=0)
        compare(make, instances, (2, 4), rank, passes=0, keeps=True)
    with patch.object(_columns, "BUCKET_BYTES", 100):
        compare(mlp, instances, (3, 2), rank, passes=0)
        compare(mlp, instances, (3, 2), rank, passes=0, keeps=True)
    compare(mlp, matrix, (2, 3), rank, passes=0)
    compare(mlp, instances, (2, 4), rank, passes=0, micro_batches=2, keeps=True)
    # What cannot be told apart in one pass takes one per row, on all processes.
    compare(mlp, instances, (3, 1), rank, passes=4)
    compare(Checkpointed, instances, (2, 2), rank, passes=4)
    compare(normalised, instances, (3, 2), rank, passes=5)
    compare(Clipped, instances, (3, 2), rank, passes=5)
    check_certificate(rank)
    check_precision(rank)


def check_certificate(rank: int) -> None:
    """What is wrong on one process is noticed on both, and rows are computed one by one."""
    for layer, verb in ((nn.Sigmoid, "gradients"), (nn.Softplus, "gramian"), (nn.ReLU, "rows")):
        torch.manual_seed(1)
        whole, model = (
            nn.Sequential(nn.Linear(6, 7), layer(), nn.Linear(7, 3)).double() for _ in range(2)
        )
        model.load_state_dict(whole.state_dict())
        shard(model)
        x = torch.randn(4, 6, dtype=torch.float64).split(2)
        original = getattr(OuterProduct, verb)

        def wrong(*args: Any, original: Any = original) -> Any:
            found, factor = original(*args), 1 + 1e-5 * rank
            return [factor * g for g in found] if isinstance(found, list) else factor * found

        def losses(_: int, model: Any = model, part: Any = x[rank]) -> Any:
            return instances(model, part)

        J = torch.cat([jacobian(instances(whole, part), whole, chunk=1) for part in x])
        for number, told in enumerate((True, False, False)):
            with (
                patch.object(OuterProduct, verb, wrong),
                patch.object(OuterProduct, "blocks", lambda self, _: iter([self.rows()])),
                warnings.catch_warnings(record=True) as caught,
            ):
                warnings.simplefilter("always")
                update, seen = step(model, losses, keeps=verb == "rows")
            assert any("differ from those of single" in str(w.message) for w in caught) == told
            assert seen["passes"] == (5 if told else 4), (verb, number)
            assert_close(update.report.gramian, J @ J.T, rtol=1e-10, atol=1e-12)


def check_precision(rank: int) -> None:
    """Gathered in bfloat16, rows are as coarse as those of single passes, and no coarser."""
    torch.manual_seed(1)
    model = mlp()
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    shard(model, mp_policy=half)
    x = torch.randn(2, 6)
    together, seen = step(model, lambda _: instances(model, x).float())
    assert seen["passes"] == 1  # the certificate
    with patch.object(_fsdp_tape, "leaves_reached", lambda _: {0}):  # of no parameter
        single, seen = step(model, lambda _: instances(model, x).float())
    assert seen["passes"] == 4
    scale = single.report.gramian.diagonal().max()
    assert_close(together.report.gramian / scale, single.report.gramian / scale, rtol=0, atol=0.03)


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path) -> None:
    run_in_two_processes(work, tmp_path)
