"""`backward` and `Accumulator` in loops of one's own with DistributedDataParallel: one process.

Run as a script by torchrun, too.
"""

import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

from lightning_jd import Accumulator, backward
from lightning_jd.errors import SetupError
from tests.helpers.two_processes import leave, run_in_two_processes

MICRO, BATCH, STEPS = 2, 12, 2


class Net(nn.Module):
    """A trunk and two heads."""

    def __init__(self, *, unused: bool = False) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
        self.heads = nn.ModuleList(nn.Linear(6, 1) for _ in range(2))
        if unused:
            self.unused = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.trunk(x)
        return torch.cat([head(h) for head in self.heads], dim=1)


def net(**arguments: Any) -> Net:
    torch.manual_seed(0)
    return Net(**arguments).double()


def data() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(BATCH, 4), (BATCH, 2)]
    return [
        tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
        for _ in range(STEPS * MICRO)
    ]


def losses(model: nn.Module, batch: tuple[Tensor, Tensor], form: str) -> Any:
    x, y = batch
    errors = (model(x) - y).square()
    tasks = errors.mean(dim=0)
    return {
        "instances": errors.mean(dim=1),
        "matrix": errors,
        "tasks": {"a": tasks[0], "b": tasks[1]},
        "list": list(tasks),
    }[form]


def share(batch: tuple[Tensor, Tensor], *, equal: bool = True) -> tuple[Tensor, Tensor]:
    """What this process has of a batch."""
    first = BATCH // 2 if equal else 5
    part = slice(0, first) if dist.get_rank() == 0 else slice(first, BATCH)
    return batch[0][part], batch[1][part]


Step = Callable[[nn.Module, list[tuple[Tensor, Tensor]]], None]


def trained(model: nn.Module, inside: nn.Module, step: Step, cut: Any = None) -> list[Tensor]:
    optimizer = torch.optim.SGD(inside.parameters(), lr=0.1)
    batches = [batch if cut is None else cut(batch) for batch in data()]
    for k in range(STEPS):
        optimizer.zero_grad()
        step(model, batches[MICRO * k : MICRO * k + MICRO])
        optimizer.step()
    return [p.detach().clone() for p in inside.parameters()]


def check(step: Step, *, equal: bool = True, unused: bool = False, **wrap: Any) -> None:
    expected = trained(alone := net(unused=unused), alone, step)
    inside = net(unused=unused)
    model = DistributedDataParallel(inside, **wrap)
    found = trained(model, inside, step, lambda batch: share(batch, equal=equal))
    assert_close(found, expected, rtol=0, atol=1e-11)


def one(
    form: str, aggregator: Any = "upgrad", give: Any = lambda model: model, **options: Any
) -> Step:
    def step(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> None:
        report = backward(losses(model, batches[0], form), give(model), aggregator, **options)
        listed = {"instances": BATCH, "matrix": 2 * BATCH}
        assert len(report.names) == listed.get(form, 2)

    return step


def inner(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, DistributedDataParallel) else model


def naive(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> None:
    """Each micro-batch aggregated for itself."""
    for k, batch in enumerate(batches):
        last = k == MICRO - 1 or not isinstance(model, DistributedDataParallel)
        with nullcontext() if last else model.no_sync():
            backward(losses(model, batch, "instances"), model, "upgrad")


def collected(form: str, *, quiet: bool) -> Step:
    def step(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> None:
        accumulator = Accumulator(model, "upgrad")
        for batch in batches:
            hold = quiet and isinstance(model, DistributedDataParallel)
            with model.no_sync() if hold else nullcontext():
                accumulator.add(losses(model, batch, form))
        accumulator.backward()

    return step


def forms(rank: int, folder: Path) -> None:
    for form in ("instances", "matrix", "tasks", "list"):
        check(one(form))
        check(one(form, give=inner))
        check(one(form, give=lambda model: list(inner(model).parameters())))
    for form in ("instances", "matrix"):
        check(one(form), equal=False)
    check(one("tasks", params="shared"))
    check(one("instances", "mgda", groups="layer"))
    check(one("instances", {"name": "trimmedmean", "trim": 1}))
    check(one("tasks", "gls"))


def wrappings(rank: int, folder: Path) -> None:
    for form in ("instances", "tasks"):
        check(one(form), gradient_as_bucket_view=True)
        check(one(form), static_graph=True)
        check(one(form), find_unused_parameters=True, unused=True)
        check(one(form, give=inner), find_unused_parameters=True, unused=True)


def accumulations(rank: int, folder: Path) -> None:
    check(naive)
    for form in ("instances", "tasks"):
        for quiet in (True, False):
            check(collected(form, quiet=quiet))


def apart(rank: int, folder: Path) -> None:
    """A model that is not wrapped belongs to one process, wrapped elsewhere or not."""
    model = net()
    report = backward(losses(model, share(data()[0]), "instances"), model, "upgrad")
    assert len(report.names) == BATCH // 2
    local = [p.grad.clone() for p in model.parameters()]
    DistributedDataParallel(other := net())
    model.zero_grad()
    backward(losses(other, share(data()[0]), "instances"), other, "upgrad")
    assert_close([p.grad for p in other.parameters()], local)
    if rank == 0:  # nobody waits for the others
        backward(losses(other, data()[0], "instances"), other, "upgrad")


def refused(rank: int, folder: Path) -> None:
    groups = [dist.new_group([k]) for k in range(2)]
    model = DistributedDataParallel(net(), process_group=groups[rank])
    with pytest.raises(SetupError, match=r"must have the default process group.*1 processes of 2"):
        backward(losses(model, share(data()[0]), "instances"), model)
    model = DistributedDataParallel(net(unused=True))
    with pytest.raises(SetupError, match=r"no loss .* reaches 'unused.weight'.*Pass `find_unused"):
        backward(losses(model, share(data()[0]), "instances"), model)


def scaled(rank: int, folder: Path) -> None:
    def step(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        backward(losses(model, batches[0], "instances"), model, scaler=scaler)
        scaler.unscale_(optimizer)

    check(step)


@pytest.mark.parametrize("work", [forms, wrappings, accumulations, apart, refused, scaled])
def test_two_processes_equal_one(work: Callable[[int, Path], None], tmp_path: Path) -> None:
    run_in_two_processes(work, tmp_path)


def main() -> None:
    """Started by torchrun, with the library that wraps the model as argument."""
    if sys.argv[1:] == ["accelerate"]:
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        inside = net()
        model = accelerator.prepare(inside)
        found = trained(model, inside, one("instances"), share)
        expected = trained(alone := net(), alone, one("instances"))
        assert isinstance(model, DistributedDataParallel)
        assert_close(found, expected, rtol=0, atol=1e-11)
    else:
        dist.init_process_group("gloo")
        forms(dist.get_rank(), Path())
    if dist.get_rank() == 0:
        print("equal")
    dist.destroy_process_group()
    leave()


@pytest.mark.slow
@pytest.mark.parametrize("library", ["torch", "accelerate"])
def test_torchrun_starts_the_processes(library: str) -> None:
    pytest.importorskip(library)
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    run = subprocess.run(
        [sys.executable, *torchrun, "-m", "tests.surfaces.test_plain_ddp", library],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "equal" in run.stdout


if __name__ == "__main__":
    main()
