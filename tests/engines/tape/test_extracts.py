"""Norms, blocks between two batches, and projections: against rows by autograd."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.testing import assert_close
from torch.utils.data import DataLoader

from lightning_jd import gradient_norms, gramian, gramian_of_data, project
from lightning_jd.engines.tape import OuterProduct
from lightning_jd.engines.tape.contributions import Contribution, Lookup, Projection
from lightning_jd.engines.tape.contributions.convolution import ConvolutionWeight
from lightning_jd.errors import ArgumentError, GraphError, SetupError, ShapeError
from tests.engines.oracle import jacobian_blocks
from tests.engines.zoo import CASES, default_dtype
from tests.engines.zoo._registry import Losses, Named
from tests.helpers.rows import scalars
from tests.helpers.two_processes import run_in_two_processes

DIM = 12


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def real(block: Tensor) -> Tensor:
    """Complex entries as two columns."""
    return torch.view_as_real(block).flatten(1) if block.is_complex() else block


def rows_of(losses: Losses, named: Named) -> dict[str, Tensor]:
    blocks = jacobian_blocks(losses, named)
    pairs = zip(named, blocks, strict=True)
    return {name: real(block) for (name, _), block in pairs if block is not None}


def projected(rows: dict[str, Tensor], seed: int) -> Tensor:
    parts = [Projection(DIM, seed, name).of([J]) for name, J in rows.items()]
    return sum(parts, start=torch.zeros(()))


@pytest.mark.parametrize("name", CASES)
def test_all_three_are_exact_on(name: str) -> None:
    """The second set of losses mixes all of the first, so that it has rows of another form."""
    with default_dtype(torch.float64):
        losses, named = CASES[name]()
        rows = rows_of(losses, named)
        J = torch.cat(list(rows.values()), dim=1)
        mixed = torch.randn(2, len(J))
        others = list((mixed @ torch.stack(scalars(losses)).to(mixed)).unbind())
        size = J.norm(dim=1).max().clamp(min=1)
        if isinstance(losses, Tensor) and losses.ndim == 0:
            losses = [losses]
        for _ in range(2):  # certified, and not
            norms = gradient_norms(losses, named)
            assert_close(norms / size, J.norm(dim=1) / size, rtol=1e-9, atol=1e-7)  # of a root
            block = gramian(losses, named, other=others)
            assert_close(block / size**2, J @ (mixed @ J).T / size**2, rtol=1e-9, atol=1e-11)
            P = project(losses, named, dim=DIM, seed=3)
            assert_close(P / size, projected(rows, 3) / size, rtol=1e-9, atol=1e-11)


class Tied(nn.Module):
    """A table that is also the last layer, and a cell that is used at each position."""

    def __init__(self, entries: int = 40, d: int = 6) -> None:
        super().__init__()
        self.table, self.cell = nn.Embedding(entries, d), nn.LSTM(d, d, batch_first=True)

    def forward(self, words: Tensor) -> Tensor:
        h, _ = self.cell(self.table(words))
        logits = h @ self.table.weight.T
        return F.cross_entropy(logits[:, :-1].mT, words[:, 1:], reduction="none").sum(dim=1)


def images(*layers: nn.Module) -> tuple[nn.Module, Tensor, Tensor]:
    model = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(3))
    model(x := torch.randn(4, 3, 8, 6))
    return model, x, torch.randn(3, 3, 8, 6)


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor, Tensor]]] = {
    "tied": lambda: (Tied(), torch.randint(0, 40, (4, 7)), torch.randint(0, 40, (3, 5))),
    "tied, small": lambda: (Tied(7), torch.randint(0, 7, (4, 30)), torch.randint(0, 7, (3, 20))),
    "many pixels": lambda: images(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Conv2d(4, 4, 3)),
    "few pixels": lambda: images(nn.Conv2d(3, 16, 3, stride=3), nn.Tanh(), nn.Conv2d(16, 9, 2)),
    "groups": lambda: images(nn.Conv2d(3, 6, 3, groups=3), nn.GroupNorm(2, 6), nn.Tanh()),
    "one axis": lambda: images(nn.Flatten(2), nn.Conv1d(3, 4, 3), nn.Tanh(), nn.BatchNorm1d(4)),
}


def losses_of(model: nn.Module, x: Tensor) -> Tensor:
    output = model(x)
    return output.flatten() if output.ndim == 1 else output.square().sum(dim=1)


@pytest.mark.parametrize("name", MODELS)
def test_a_block_between_batches_of_different_sizes(name: str) -> None:
    with default_dtype(torch.float64):
        model, x, y = MODELS[name]()
        named = list(model.named_parameters())
        first, second = losses_of(model, x), losses_of(model, y)
        J, K = (torch.cat(list(rows_of(each, named).values()), dim=1) for each in (first, second))
        for _ in range(2):
            assert_close(gramian(first, model, other=second), J @ K.T, rtol=1e-9, atol=1e-11)
            assert_close(gramian(second, model, other=first), K @ J.T, rtol=1e-9, atol=1e-11)
            assert_close(gradient_norms(second, model), K.norm(dim=1), rtol=1e-9, atol=1e-11)


def test_no_rows_of_a_tied_table_are_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(*_: object) -> None:
        raise AssertionError("rows were formed")

    with default_dtype(torch.float64):
        model = Tied(2000, 20)
        x, y = torch.randint(0, 2000, (4, 7)), torch.randint(0, 2000, (3, 5))
        first, second = model(x), model(y)
        gramian(first, model, other=second), gradient_norms(first, model)  # certified by now
        for kind in (OuterProduct, Lookup):
            for method in ("rows", "blocks"):
                monkeypatch.setattr(kind, method, rows)
        gramian(first, model, other=second), gradient_norms(first, model)


def test_norms_of_groups_of_parameters() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    losses = losses_of(model, torch.randn(6, 5))
    rows = rows_of(losses, list(model.named_parameters()))
    norms = gradient_norms(losses, model, groups="layer")
    assert list(norms) == ["0", "2"]
    for k, found in norms.items():
        expected = torch.cat([J for name, J in rows.items() if name.startswith(str(k))], dim=1)
        assert_close(found, expected.norm(dim=1))
    by_kind = gradient_norms(losses, model, groups=lambda name: name.partition(".")[2])
    squares = sum(found.square() for found in by_kind.values())
    assert_close(squares, gradient_norms(losses, model).square())


WRONG = {
    "squared_norms": lambda losses, model: gradient_norms(losses, model),
    "project": lambda losses, model: project(losses, model, dim=DIM),
    "cross": lambda losses, model: gramian(losses, model, other=losses),
}


@pytest.mark.parametrize("method", WRONG)
@pytest.mark.parametrize("kind", [OuterProduct, ConvolutionWeight])
def test_a_wrong_method_is_found_named_and_replaced_by_rows(
    method: str, kind: type[Contribution], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(24 * 4, 3))
    x = torch.randn(5, 3, 8, 6)
    expected = WRONG[method](losses_of(model, x), model)
    right = getattr(kind, method)
    monkeypatch.setattr(kind, method, lambda self, *others: 1.01 * right(self, *others))
    again = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(24 * 4, 3))
    again.load_state_dict(model.state_dict())  # certificates belong to one model
    number = "0" if kind is ConvolutionWeight else "3"
    with pytest.warns(RuntimeWarning, match=rf"mismatch for '{number}.weight' \(\w+, relative"):
        found = WRONG[method](losses_of(again, x), again)
    assert_close(found, expected)
    assert_close(WRONG[method](losses_of(again, x), again), expected)  # without a warning


def test_projections_preserve_inner_products_within_the_bound() -> None:
    """The mean over R, its variance, and the share of pairs that are off by more than a half."""
    with default_dtype(torch.float64):
        model = nn.Sequential(nn.Linear(20, 10), nn.Tanh(), nn.Linear(10, 1))
        losses = model(torch.randn(6, 20)).flatten()
        G, dim, seeds = gramian(losses, model), 32, 400
        n = G.diagonal()
        hats = torch.stack([project(losses, model, dim=dim, seed=seed) for seed in range(seeds)])
    estimates = hats @ hats.mT
    bound = (torch.outer(n, n) + G.square()) / dim
    error = (estimates.mean(dim=0) - G) / (bound / seeds).sqrt()
    assert error.abs().max() < 4.5  # standard deviations
    spread = (estimates - G).square().mean(dim=0) / bound
    assert spread.max() < 1.3
    assert spread.mean() > 0.7  # the bound is about what happens
    # Chebyshev at four standard deviations, which is one half here; in truth it is far less
    far = ((estimates - G).abs() > 4 * bound.sqrt()).double().mean()
    assert far < 1 / 16


@pytest.mark.parametrize("dim", [1, 6, 12])
def test_each_column_of_a_projection_is_random_and_has_length_one(dim: int) -> None:
    R = Projection(dim, 0, "weight").of([torch.eye(1000).double()])
    assert_close(R.norm(dim=1), torch.ones(1000).double())
    for other in (Projection(dim, 1, "weight"), Projection(dim, 0, "bias")):
        S = other.of([torch.eye(1000).double()])
        assert abs(float((R * S).sum())) < 5 * (1000 / dim) ** 0.5
    columns = R.square().sum(dim=0)  # all dimensions alike
    assert_close(columns, torch.full_like(columns, 1000 / dim), rtol=0.4, atol=0)


def test_a_projection_is_the_same_forever_and_in_any_blocks() -> None:
    """Numbers that were projected once may be compared with others years later."""
    rows = torch.randn(3, 1000).double()
    projection = Projection(8, 7, "layer.weight")
    whole = rows @ projection.of([torch.eye(1000).double()])
    assert_close(projection.of([rows]), whole)
    assert_close(projection.of(rows.split(37, dim=1)), whole)
    R = (2 * projection.of([torch.eye(5).double()])).int()
    expected = ["0+0--00-", "0+0++0-0", "0+0-0--0", "0-+00--0", "0+-00--0"]
    assert ["".join("0+-"[number] for number in row) for row in R.tolist()] == expected


def test_what_cannot_be_computed_is_refused() -> None:
    model, other, x = nn.Linear(3, 1), nn.Linear(3, 1), torch.randn(4, 3)
    losses = model(x).flatten()
    for refused in (gradient_norms, lambda *given: project(*given, dim=2)):
        with pytest.raises(ShapeError, match="one entry per example or task, got one scalar"):
            refused(losses.mean(), model)
        with pytest.raises(GraphError, match="must depend on a parameter"):
            refused(losses, other)
        with pytest.raises(GraphError, match="must require a gradient"):
            refused(losses.detach(), model)
    with pytest.raises(GraphError, match="must depend on a parameter"):
        gramian(losses, model, other=other(x).flatten())
    with pytest.raises(GraphError, match="must depend on a parameter"):
        gramian(other(x).flatten(), model, other=losses)
    for dim in (0, 2.5, True):
        with pytest.raises(ArgumentError, match="`dim` must be a positive integer"):
            project(losses, model, dim=dim)


def test_the_gramian_of_a_data_set_comes_in_blocks() -> None:
    model, x, y = nn.Linear(3, 2).double(), torch.randn(7, 3).double(), torch.randn(5, 3).double()
    J, K = (losses_of(model, each) for each in (x, y))
    of = partial(losses_of, model)
    assert_close(gramian_of_data(of, model, x.split(3)), gramian(J, model))
    seen: list[tuple[int, int]] = []
    found = gramian_of_data(
        of, model, x.split(3), other=y.split(2), progress=lambda *at: seen.append(at)
    )
    assert_close(found, gramian(J, model, other=K))
    assert seen == [(k, 9) for k in range(1, 10)]


def test_a_call_continues_from_the_blocks_in_a_folder(tmp_path: Path) -> None:
    model, x = nn.Linear(3, 2), torch.randn(7, 3)
    expected = gramian(losses_of(model, x), model)

    def stop(done: int, _: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    def of(batch: Tensor) -> Tensor:
        calls.append(1)
        return losses_of(model, batch)

    calls: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        gramian_of_data(of, model, x.split(3), folder=tmp_path, progress=stop)
    calls.clear()
    assert_close(gramian_of_data(of, model, x.split(3), folder=tmp_path), expected)
    assert len(calls) == 3  # two blocks were missing, one of them of a batch with itself
    calls.clear()
    assert_close(gramian_of_data(of, model, x.split(3), folder=tmp_path), expected)
    assert not calls
    with torch.no_grad():
        model.weight += 1
    with pytest.raises(SetupError, match="must have blocks of these parameters or none, got"):
        gramian_of_data(of, model, x.split(3), folder=tmp_path)


class Changing(list[Tensor]):
    """Other batches each time."""

    def __iter__(self) -> Iterator[Tensor]:
        self.append(torch.ones(1))
        return iter(torch.ones(7, 3).split(1 + len(self)))


def test_loaders_that_change_are_refused() -> None:
    model, x = nn.Linear(3, 2), torch.randn(7, 3)
    of = partial(losses_of, model)
    with pytest.raises(ArgumentError, match="`batches` must be a loader or list, got tuple_iter"):
        gramian_of_data(of, model, iter(x.split(3)))
    with pytest.raises(ArgumentError, match=r"`other` must .* a loader that shuffles"):
        gramian_of_data(of, model, x.split(3), other=DataLoader(x, shuffle=True))
    with pytest.raises(ShapeError, match="must give at least one batch"):
        gramian_of_data(of, model, [])
    with pytest.raises(ShapeError, match="same batches in each iteration, got other"):
        gramian_of_data(of, model, Changing())


def two_halves(rank: int, folder: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x, y = torch.randn(7, 5).double(), torch.randn(3, 5).double()
    own = x[:4] if rank == 0 else x[4:]
    losses = losses_of(nn.parallel.DistributedDataParallel(model), own)
    found = {
        "norms": gradient_norms(losses, model),
        "block": gramian(losses, model, other=losses_of(model, y)),
        "projection": project(losses, model, dim=DIM),
    }
    torch.save(found, folder / f"{rank}.pt")


def pieces(rank: int, folder: Path) -> None:
    model = nn.Linear(4, 2)
    fully_shard(model, reshard_after_forward=True)
    losses = model(torch.randn(3, 4)).sum(dim=1)
    with pytest.raises(SetupError, match="must be whole on this process, got 'weight' in pieces"):
        gradient_norms(losses, model)


def test_two_processes_equal_one(tmp_path: Path) -> None:
    run_in_two_processes(two_halves, tmp_path)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x, y = torch.randn(7, 5).double(), torch.randn(3, 5).double()
    losses = losses_of(model, x)
    halves = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    found = {name: torch.cat([half[name] for half in halves]) for name in halves[0]}
    assert_close(found["norms"], gradient_norms(losses, model))
    assert_close(found["block"], gramian(losses, model, other=losses_of(model, y)))
    assert_close(found["projection"], project(losses, model, dim=DIM))


def test_parameters_in_pieces_are_refused(tmp_path: Path) -> None:
    run_in_two_processes(pieces, tmp_path)
