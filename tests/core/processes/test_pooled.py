"""Rows on several processes: Gramian and gradient are those of one process on the union of rows."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from examples.lab.bench._layers import layers_of
from examples.lab.bench._volume import volume
from lightning_jd.aggregators import GramianAggregator, Step, resolve
from lightning_jd.core import (
    COMPLETE,
    Delivery,
    Rows,
    Update,
    collect,
    compute_update,
    report_failure,
    split_into_groups,
)
from lightning_jd.core.processes import _columns
from lightning_jd.core.processes._columns import buckets
from lightning_jd.core.processes._pool import Pool
from lightning_jd.core.rows._accumulated import AccumulatedRows
from lightning_jd.core.rows._graph import GraphRows
from lightning_jd.engines import (
    NamedParameters,
    Objectives,
    TapeOptions,
    jacobian,
    leaves_reached,
    select,
)
from lightning_jd.errors import ArgumentError, NonFiniteError, PeerError
from tests.helpers.processes import run_in_processes
from tests.helpers.two_processes import run_in_two_processes

#: A rank to its losses, given the model and the instances of that rank.
LossesOf = Callable[[nn.Module, Tensor, int], Any]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 8, bias=False), nn.Linear(8, 3))


def convolutional() -> nn.Module:
    layers = [nn.Conv2d(1, 4, 2), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3)]
    return nn.Sequential(nn.Unflatten(1, (1, 2, 3)), *layers)


def wide_convolutional() -> nn.Module:
    """More channels than pixels: patches are smaller than gradients."""
    layers = [nn.Conv2d(1, 6, 1), nn.Tanh(), nn.Conv2d(6, 9, 2, stride=2, padding=1), nn.Flatten()]
    return nn.Sequential(nn.Unflatten(1, (1, 2, 3)), *layers, nn.Linear(36, 3))


class Attention(nn.Module):
    """A table, packed projections (slices of one parameter) and a weight that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.tied, self.unused, self.out = nn.Linear(4, 4), nn.Linear(3, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.table((x * 10).long().remainder(5))
        h = self.tied(self.attention(h, h, h, need_weights=False)[0]).tanh()
        return self.out(self.tied(h).mean(dim=1))


class Ragged(nn.Module):
    """Instances of three to seven parts in one list, as the nodes of graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        counts = 3 + (x[:, 0] * 100).long().remainder(5)
        owner = torch.arange(len(x)).repeat_interleave(counts)
        parts = x[owner] + torch.linspace(0, 1, len(owner), dtype=x.dtype).unsqueeze(1)
        h = self.part(parts).tanh()
        return self.out(torch.zeros_like(x).index_add(0, owner, h))


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.modes = nn.Parameter(torch.randn(4, 3, dtype=torch.complex128))
        self.out = nn.Linear(3, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.out((torch.fft.rfft(x, dim=1) @ self.modes).abs())

    def to(self, *args: Any, **kwargs: Any) -> "Complex":
        return self  # torch would discard the imaginary part


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(6, 5)
        self.a, self.b = nn.Linear(5, 1), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x).tanh()
        return self.a(h), self.b(h)


def instances(model: nn.Module, x: Tensor, rank: int) -> Any:
    return model(x).square().mean(dim=1) if len(x) else None


def matrix(model: nn.Module, x: Tensor, rank: int) -> Any:
    return (model(x) - 1).square()


def tasks(model: nn.Module, x: Tensor, rank: int) -> Any:
    errors = (model(x) - 1).square().mean(dim=0)
    return {"a": errors[0], "b": errors[1], "c": errors[2]}


def missing(model: nn.Module, x: Tensor, rank: int) -> Any:
    """Task "b" is on the first process only, and the last has "a" twice as large."""
    a, b = model(x)
    losses = {"a": (1 + rank) * a.square().mean(), "b": (b - 1).square().mean()}
    return losses if rank == 0 else {"a": losses["a"]}


def exclusive(model: nn.Module, x: Tensor, rank: int) -> Any:
    a, b = model(x)
    return {"b": (b - 1).square().mean()} if rank == 0 else {"a": a.square().mean()}


def ranks(model: nn.Module, x: Tensor, rank: int) -> Any:
    loss = (model(x) - rank).square().mean()
    return Objectives((str(rank),), "ranks", (loss,))


@dataclass(frozen=True)
class Case:
    model: Callable[[], nn.Module]
    losses: LossesOf
    counts: tuple[int, ...] = (3, 2)
    aggregator: str = "upgrad"
    select: Any = "all"
    groups: Any = None
    memory: Any = "fast"
    keeps: bool = False
    delivery: Delivery = COMPLETE
    bucket: int = 25 << 20
    dtype: torch.dtype = torch.float64


AVERAGED = Delivery(everywhere=True, averaged=True)
WHERE_REACHED = Delivery(everywhere=False, averaged=True)
CASES = {
    "instances": Case(mlp, instances),
    "instances, averaged by somebody else": Case(mlp, instances, delivery=AVERAGED),
    "instances, small buckets": Case(mlp, instances, bucket=200),
    "instances, kept": Case(mlp, instances, keeps=True, bucket=200),
    "instances, low memory": Case(mlp, instances, memory="low", delivery=AVERAGED),
    "instances, per layer": Case(mlp, instances, groups="layer"),
    "instances, some parameters": Case(mlp, instances, select="0.*"),
    "instances, float32": Case(mlp, instances, dtype=torch.float32),
    "instances, mgda": Case(convolutional, instances, aggregator="mgda"),
    "instances, graddrop": Case(mlp, instances, aggregator="graddrop", bucket=200),
    "instances, pcgrad": Case(mlp, instances, aggregator="pcgrad"),
    "convolutions": Case(convolutional, instances),
    "convolutions, small buckets": Case(convolutional, instances, bucket=100, delivery=AVERAGED),
    "wide convolutions": Case(wide_convolutional, instances),
    "wide convolutions, matrix": Case(wide_convolutional, matrix, delivery=AVERAGED),
    "attention": Case(Attention, instances),
    "attention, low memory": Case(Attention, instances, memory="low"),
    "ragged": Case(Ragged, instances),
    "ragged, matrix": Case(Ragged, matrix, delivery=AVERAGED, bucket=200),
    "complex": Case(Complex, instances),
    "complex, kept": Case(Complex, instances, keeps=True, delivery=AVERAGED),
    "complex, tasks, graddrop": Case(Complex, tasks, aggregator="graddrop"),
    "matrix": Case(mlp, matrix),
    "matrix, some parameters": Case(mlp, matrix, select="0.*"),
    "matrix, kept": Case(convolutional, matrix, keeps=True),
    "tasks": Case(mlp, tasks),
    "tasks, averaged by somebody else": Case(mlp, tasks, delivery=AVERAGED),
    "tasks, small buckets": Case(mlp, tasks, bucket=100),
    "tasks, kept": Case(mlp, tasks, keeps=True),
    "tasks, low memory": Case(convolutional, tasks, memory="low", bucket=100),
    "tasks, float32": Case(mlp, tasks, dtype=torch.float32),
    "tasks, rgw": Case(mlp, tasks, aggregator="rgw"),
    "tasks, graddrop": Case(mlp, tasks, aggregator="graddrop", bucket=100),
    "tasks, graddrop per layer": Case(mlp, tasks, aggregator="graddrop", groups="layer"),
    "missing task": Case(Heads, missing),
    "missing task, small buckets": Case(Heads, missing, bucket=50),
    "missing task, one sample": Case(Heads, missing, counts=(1, 1)),
    "missing task, kept": Case(Heads, missing, keeps=True, delivery=AVERAGED),
    "missing task, graddrop": Case(Heads, missing, aggregator="graddrop"),
    "missing task, shared": Case(Heads, missing, select="shared", delivery=AVERAGED),
    "missing task, where reached": Case(Heads, missing, delivery=WHERE_REACHED),
    "missing task, graddrop where reached": Case(
        Heads, missing, aggregator="graddrop", delivery=Delivery(everywhere=False)
    ),
    "exclusive tasks, shared": Case(Heads, exclusive, select="shared"),
    "exclusive tasks, low memory": Case(Heads, exclusive, memory="low"),
    "ranks": Case(mlp, ranks, keeps=True),
    "ranks, averaged by somebody else": Case(mlp, ranks, keeps=True, delivery=AVERAGED),
    "ranks, small buckets": Case(convolutional, ranks, keeps=True, bucket=50, aggregator="mgda"),
    "ranks, some parameters": Case(mlp, ranks, keeps=True, select="0.*"),
}
#: What two processes cannot show: another number of neighbours, and one that has no row at all.
CASES_OF_THREE = {
    "instances": Case(mlp, instances, counts=(3, 1, 2)),
    "no instance on one": Case(mlp, instances, counts=(3, 0, 2)),
    "no instance on the first": Case(convolutional, instances, counts=(0, 4, 2), bucket=100),
    "no instance on one, kept": Case(mlp, instances, counts=(3, 0, 2), keeps=True),
    "tasks": Case(mlp, tasks, counts=(3, 1, 2), bucket=100),
    "missing task": Case(Heads, missing, counts=(1, 1, 4), delivery=AVERAGED),
    "ranks": Case(mlp, ranks, counts=(1, 3, 2), keeps=True, bucket=100),
    "graddrop": Case(mlp, instances, counts=(3, 0, 2), aggregator="graddrop"),
}


def union(losses: list[Any]) -> Objectives:
    """The losses of one process that has the rows of all."""
    some = [each for each in losses if each is not None]
    if isinstance(some[0], Objectives):
        return Objectives.of([each.losses[0] for each in some])
    if isinstance(some[0], Tensor):
        return Objectives.of(torch.cat(some))
    names = dict.fromkeys(name for each in some for name in each)
    everywhere = {name: [each[name] for each in some if name in each] for name in names}
    return Objectives.of({name: torch.stack(each).mean() for name, each in everywhere.items()})


@dataclass
class Expected:
    names: tuple[str, ...]
    gramian: Tensor
    gradients: dict[str, Tensor]


def direction_of(aggregator: Any, J: Tensor, objectives: Objectives) -> Tensor:
    """That of a method which knows what the rows are."""
    if not isinstance(aggregator, GramianAggregator):
        return aggregator(J)
    return aggregator.weigh(J @ J.T, Step(objectives.names, kind=objectives.kind)) @ J


def expected_of(case: Case, objectives: Objectives, named: NamedParameters) -> Expected:
    """Row by row, by autograd, in float64."""
    aggregator = resolve(case.aggregator)
    reached = leaves_reached(objectives)
    named = [(name, tensor) for name, tensor in named if id(tensor) in reached]
    selection = select(objectives, named, case.select)
    G = torch.zeros(objectives.m, objectives.m, dtype=torch.float64)
    found: dict[str, Tensor] = {}
    for part in split_into_groups(selection.selected, case.groups).values():
        J = jacobian(objectives, part, chunk=1).double()
        G += J @ J.T
        direction = direction_of(aggregator, J, objectives)
        sizes = [tensor.numel() * (2 if tensor.is_complex() else 1) for _, tensor in part]
        for (name, tensor), piece in zip(part, direction.split(sizes), strict=True):
            if tensor.is_complex():
                piece = torch.complex(*piece.view(-1, 2).unbind(1))
            found[name] = piece.view(tensor.shape)
    if selection.plain:
        mean = case.losses is not tasks and case.losses not in (missing, exclusive)
        total = objectives.outputs[0].mean() if mean else sum(objectives.outputs)
        if case.losses is ranks:
            total = torch.stack(objectives.outputs).mean()
        elif case.losses is matrix:
            total = total * objectives.outputs[0].shape[1]
        tensors = [tensor for _, tensor in selection.plain]
        plain = torch.autograd.grad(total, tensors, retain_graph=True)
        found |= {name: g.double() for (name, _), g in zip(selection.plain, plain, strict=True)}
    return Expected(objectives.names, G, found)


@contextmanager
def buckets_of(size: int) -> Iterator[None]:
    """Buckets of some bytes; no process may send more rows at a time."""
    send = Pool.send

    def checked(self: Pool, leaving: Any, *args: Any) -> Any:
        rows = [part for each in leaving for part in each.get("rows", ())]
        assert sum(part.nbytes for part in rows) <= max(size, *(8 * len(part) for part in rows), 0)
        return send(self, leaving, *args)

    with patch.object(_columns, "BUCKET_BYTES", size), patch.object(Pool, "send", checked):
        yield


def run(
    case: Case, rank: int, make: Callable[..., Rows] | None = None, steps: int = 1
) -> tuple[Update, Expected, NamedParameters]:
    """The last of some equal steps of one model; the first one is certified."""
    torch.manual_seed(1)
    model = case.model().to(case.dtype)
    x = torch.randn(sum(case.counts), 6, dtype=case.dtype)
    parts = x.split(list(case.counts))
    named = list(model.named_parameters())
    for _ in range(steps):
        own = case.losses(model, parts[rank], rank)
        if make is None:
            rows = collect(
                named, select=case.select, keeps=case.keeps, options=TapeOptions(case.memory)
            )
        else:
            rows = make(named, select=case.select)
        if own is not None:
            rows.add(Objectives.of(own))
        with buckets_of(case.bucket):
            update = compute_update(
                rows, resolve(case.aggregator), groups=case.groups, delivery=case.delivery
            )
    losses = [case.losses(model, part, r) for r, part in enumerate(parts)]
    return update, expected_of(case, union(losses), named), named


def check(name: str, case: Case, rank: int, processes: int) -> None:
    update, expected, named = run(case, rank)
    close = {"rtol": 1e-10, "atol": 1e-11}
    if case.dtype == torch.float32:
        close = {"rtol": 1e-5, "atol": 1e-6}

    def told(message: str) -> str:
        return f"{name}, process {rank}: {message}"

    report = update.report
    assert report.names == expected.names, told("names")
    assert_close(report.gramian.double(), expected.gramian, **close, msg=told)
    everything: list[Any] = [None] * processes
    dist.all_gather_object(everything, (report.gramian, report.known_weights))
    for other in everything:
        assert_close(other, everything[0], rtol=0, atol=0, msg=told)
    names = {id(tensor): parameter for parameter, tensor in named}
    delivered = {
        names[id(tensor)]: gradient
        for tensor, gradient in zip(update.params, update.gradients, strict=True)
    }
    if case.delivery.everywhere:
        assert delivered.keys() == expected.gradients.keys(), told("parameters")
    for parameter, g in expected.gradients.items():
        own = delivered.get(parameter, torch.zeros_like(g)).to(g.dtype)
        if case.delivery != COMPLETE:  # the mean that comes afterwards
            own = Pool().sum(own, "test") / processes
        assert_close(own, g, **close, msg=told)


def work_of_three(rank: int, folder: Path) -> None:
    for name, case in CASES_OF_THREE.items():
        check(name, case, rank, 3)


def check_volume(rank: int) -> None:
    """What was sent is what the function of the sizes says."""
    for kind, losses, m in (("instances", instances, 4), ("tasks", tasks, 3), ("ranks", ranks, 1)):
        for make in (mlp, convolutional, wide_convolutional):
            case = Case(make, losses, counts=(4, 4), keeps=kind == "ranks", delivery=AVERAGED)
            sent = run(case, rank, steps=3)[0].report.bytes_sent  # certified, agreed on, steady
            layers = layers_of(make(), torch.zeros(4, 6), kind)
            expected = volume(kind, m, layers, 2, itemsize=8)
            assert expected["factors"] > 0 or kind == "ranks"
            for purpose in ("rows", "factors", "gramian", "weights"):
                total = int(Pool().sum(torch.tensor(sent.get(purpose, 0)), "test"))
                assert total == 2 * expected[purpose], (kind, make, purpose, total, expected)
            assert "gradient" not in sent  # left to DistributedDataParallel


def check_nonfinite(rank: int) -> None:
    def nan_on_the_second(model: nn.Module, x: Tensor, rank: int) -> Any:
        losses = tasks(model, x, rank)
        return losses if rank == 0 else losses | {"b": losses["b"] * torch.nan}

    def infinite_gradient(model: nn.Module, x: Tensor, rank: int) -> Any:
        losses = tasks(model, x, rank)
        zero = (model[0].weight * 0).sum()  # the square root is zero, its gradient is not
        return losses if rank == 0 else losses | {"c": zero.sqrt() + losses["c"]}

    for keeps in (False, True):
        case = Case(mlp, nan_on_the_second, keeps=keeps)
        with pytest.raises(NonFiniteError, match=r"Losses .* in 1 of 6 on 2 processes: 'b'\."):
            run(case, rank)
        with pytest.raises(NonFiniteError, match=r"of 1 of 3 objectives on 2 processes: 'c'\."):
            run(replace(case, losses=infinite_gradient), rank)
        for losses, names, dropped in (
            (nan_on_the_second, ("a", "b", "c"), ("b",)),
            (infinite_gradient, ("a", "b"), ("c",)),
        ):
            skipped(losses, names, dropped, rank, keeps)


def skipped(
    losses: LossesOf, names: tuple[str, ...], dropped: tuple[str, ...], rank: int, keeps: bool
) -> None:
    """A loss is left out where it is NaN; a row of which a part is infinite, everywhere."""
    torch.manual_seed(1)
    model = mlp().double()
    parts = torch.randn(5, 6, dtype=torch.float64).split([3, 2])
    named = list(model.named_parameters())
    rows = collect(named, nonfinite="skip", keeps=keeps)
    rows.add(Objectives.of(losses(model, parts[rank], rank)))
    update = compute_update(rows, resolve("upgrad"))
    assert update.report.names == names
    assert update.report.skipped == dropped
    first, second = (tasks(model, part, r) for r, part in enumerate(parts))
    means = {name: (first[name] + second[name]) / 2 for name in first}
    means["b"] = first["b"] if losses(model, parts[1], 1)["b"].isnan() else means["b"]
    kept = Objectives.of({name: means[name] for name in names})
    J = jacobian(kept, named)
    assert_close(update.report.gramian, J @ J.T, rtol=1e-10, atol=1e-12)
    flat = torch.cat([gradient.flatten() for gradient in update.gradients])
    assert_close(flat, direction_of(resolve("upgrad"), J, kept), rtol=1e-10, atol=1e-12)


def check_kinds(rank: int) -> None:
    model = mlp()
    losses = (instances if rank else tasks)(model, torch.randn(3, 6), rank)
    rows = collect(list(model.named_parameters()), keeps=False)
    rows.add(Objectives.of(losses))
    with pytest.raises(ArgumentError, match=r"of one kind .* got instances and tasks"):
        compute_update(rows, resolve("mean"))


def check_agreement(rank: int) -> None:
    """A value that all have heard before is not sent again."""
    pool = Pool()
    value = ("a long statement " * 100, rank)
    assert pool.gather(value) == [(value[0], 0), (value[0], 1)]
    before = pool.sent["agreement"]
    assert pool.gather(value) == [(value[0], 0), (value[0], 1)]
    assert pool.sent["agreement"] - before == 16
    assert pool.gather(("another", rank)) == [("another", 0), ("another", 1)]


def check_micro_batches(rank: int) -> None:
    """What the last micro-batch of a process does not reach, others deliver in its place."""
    torch.manual_seed(1)
    model = Heads().double()
    named = list(model.named_parameters())
    x = torch.randn(4, 2, 6, dtype=torch.float64)  # two micro-batches of two processes
    both = [[missing(model, x[2 * k + r], 0) for r in range(2)] for k in range(2)]
    del both[1][1]["b"]
    rows = collect(named)
    for losses in both:
        rows.add(Objectives.of(losses[rank]))
    update = compute_update(rows, resolve("upgrad"), delivery=WHERE_REACHED)
    means = {
        name: torch.stack([each[name] for pair in both for each in pair if name in each]).mean()
        for name in ("a", "b")
    }
    direction = direction_of(resolve("upgrad"), jacobian(means, named), Objectives.of(means))
    expected = direction.split([p.numel() for _, p in named])
    delivered = dict(zip(map(id, update.params), update.gradients, strict=True))
    assert (id(model.b.weight) in delivered) == (rank == 0)
    for (_, tensor), g in zip(named, expected, strict=True):
        own = delivered.get(id(tensor), torch.zeros_like(tensor))
        assert_close(Pool().sum(own.detach(), "test").flatten() / 2, g, rtol=1e-10, atol=1e-12)
    del both[1][0]["b"]
    lost = collect(named)
    for losses in both:
        lost.add(Objectives.of(losses[rank]))
    with pytest.raises(ArgumentError, match=r"none does for b\.bias"):
        compute_update(lost, resolve("upgrad"), delivery=WHERE_REACHED)


@contextmanager
def collectives() -> Iterator[list[str]]:
    """What is called of torch.distributed meanwhile."""
    used: list[str] = []

    def noted(name: str) -> Any:
        original = getattr(dist, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            used.append(name)
            return original(*args, **kwargs)

        return patch.object(dist, name, call)

    verbs = "all_gather all_gather_object all_reduce all_to_all_single broadcast barrier"
    others = "broadcast_object_list batch_isend_irecv isend irecv send recv reduce gather scatter"
    with ExitStack() as stack:
        for name in (verbs + " " + others).split():
            stack.enter_context(noted(name))
        yield used


STEADY = ["all_gather", "all_to_all_single", "all_reduce", "broadcast"]


def check_collectives(rank: int) -> None:
    """A step like the one before: a roll call, one exchange, one sum, and the weights."""
    for model, losses, keeps in (
        (mlp, instances, False),
        (convolutional, instances, False),
        (Attention, instances, False),
        (mlp, tasks, False),
        (Heads, missing, False),  # processes that reach other parameters gather once more
        (mlp, ranks, True),
    ):
        case = Case(model, losses, keeps=keeps, delivery=AVERAGED)
        with collectives() as used:
            run(case, rank, steps=3)
        steady = ["all_gather"] * (losses is missing) + STEADY
        n = len(steady)
        assert used[-n:] == used[-2 * n : -n] == steady, (model, losses, used)


def check_lengths(rank: int) -> None:
    """Sizes that change from step to step, on one process or on both, travel with the roll call."""

    class Sequences(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.out = nn.Linear(2, 5), nn.Linear(5, 3)
            self.length = 3

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.token(x.view(len(x), 3, 2)[:, : self.length]).tanh().mean(dim=1))

    def of_length(model: nn.Module, x: Tensor, k: int) -> Any:
        model.length = lengths[k]
        return model(x).square().mean(dim=1)

    for lengths in ((3, 3), (3, 3), (2, 3), (1, 2), (3, 1), (1, 1)):
        with collectives() as used:
            check(f"lengths {lengths}", Case(Sequences, of_length), rank, 2)
        assert used.count("all_to_all_single") == 1, used


class _Shared(torch.autograd.Function):
    """Waits for the other processes in its backward pass, as SyncBatchNorm does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        dist.all_reduce(g.clone())
        return g


def check_custom(rank: int) -> None:
    """A backward pass that waits for other processes begins when none of them has failed."""

    def through_others(model: nn.Module, x: Tensor, k: int) -> Any:
        return _Shared.apply(model(x)).square().mean(dim=1)

    check("custom", Case(mlp, through_others, counts=(2, 2)), rank, 2)
    if rank:
        report_failure(ValueError("of my own"), torch.device("cpu"))
    else:
        with pytest.raises(PeerError, match="ValueError: of my own"):
            run(Case(mlp, through_others), rank)


def of_two(rank: int, folder: Path, name: str) -> None:
    warnings.simplefilter("error")
    if name in CASES:
        check(name, CASES[name], rank, 2)
    else:
        THEMES[name](rank)


THEMES: dict[str, Callable[[int], None]] = {
    "volume": check_volume,
    "nonfinite": check_nonfinite,
    "kinds": check_kinds,
    "agreement": check_agreement,
    "micro-batches": check_micro_batches,
    "collectives": check_collectives,
    "lengths": check_lengths,
    "custom": check_custom,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CASES, *THEMES])
def test_two_processes_equal_one(name: str, tmp_path: Path) -> None:
    run_in_two_processes(partial(of_two, name=name), tmp_path)


@pytest.mark.slow
def test_three_processes_equal_one(tmp_path: Path) -> None:
    run_in_processes(work_of_three, tmp_path, 3)


@pytest.mark.parametrize("make", [GraphRows, AccumulatedRows])
@pytest.mark.parametrize("name", CASES_OF_THREE)
def test_one_process_is_a_pool_of_one(name: str, make: type[Rows]) -> None:
    case = replace(CASES_OF_THREE[name], counts=(5,))
    update, expected, _ = run(case, 0, make)
    assert_close(update.report.gramian, expected.gramian, rtol=1e-10, atol=1e-12)
    for gradient, g in zip(update.gradients, expected.gradients.values(), strict=True):
        assert_close(gradient, g, rtol=1e-10, atol=1e-12)
    assert isinstance(resolve(case.aggregator), GramianAggregator) == (
        update.report.known_weights is not None
    )


def test_a_bucket_has_equal_columns() -> None:
    blocks = [torch.arange(7.0).view(1, 7), torch.arange(7.0, 8.0).view(1, 1), torch.zeros(1, 0)]
    found = list(buckets(blocks, 3))
    assert [bucket.shape[1] for bucket in found] == [3, 3, 2]
    assert_close(torch.cat(found, dim=1), torch.arange(8.0).view(1, 8))


def test_factors_are_rows_in_disguise() -> None:
    from lightning_jd.engines.tape.contributions import cross_gramian

    for T, S, i, o in ((1, 1, 3, 4), (2, 3, 5, 4), (9, 8, 2, 3)):  # by kernels and by rows
        torch.manual_seed(0)
        A, D = torch.randn(4, T, i).double(), torch.randn(4, T, o).double()
        B, E = torch.randn(3, S, i).double(), torch.randn(3, S, o).double()
        first = torch.cat([torch.einsum("kti,kto->kio", A, D).flatten(1), D.sum(1)], dim=1)
        second = torch.cat([torch.einsum("kti,kto->kio", B, E).flatten(1), E.sum(1)], dim=1)
        assert_close(cross_gramian((A, D), (B, E), bias=True), first @ second.T)
        rows = F.pad(first, (0, -o)) @ F.pad(second, (0, -o)).T
        assert_close(cross_gramian((A, D), (B, E), bias=False), rows)
