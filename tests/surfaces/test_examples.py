"""The table of examples against rows by autograd, and all that may mix up indices."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.testing import assert_close
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from lightning_jd import JacobianDescent, JDReport
from lightning_jd.errors import ArgumentError, NotComputedError, SetupError
from tests.helpers.lightning import ManualRegression, Regression, ResumableLoader, fit, network
from tests.helpers.two_processes import run_in_two_processes

N = 22  # the last batch of 4 is smaller


def data(n: int = N) -> TensorDataset:
    """Inputs, targets, and the index of each example."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(n, 5, generator=draw), torch.randn(n, 3, generator=draw)
    return TensorDataset(x.double(), y.double(), torch.arange(n))


def shuffled(**arguments: Any) -> DataLoader[Any]:
    draw = torch.Generator().manual_seed(1)
    return DataLoader(data(), batch_size=4, shuffle=True, generator=draw, **arguments)


class Watched(Regression):
    """Keeps index, row and loss of each example of each update, one backward pass each."""

    def __init__(self, form: Any = "instances") -> None:
        super().__init__(form, net=network().double(), lr=0.05)
        self.pending: list[tuple[int, Tensor, float]] = []
        self.oracle: dict[int, list[list[float]]] = {}

    def errors(self, batch: Any) -> Tensor:
        return (self.net(batch[0]) - batch[1]).square()

    def training_step(self, batch: Any, batch_idx: int = 0) -> Any:
        errors = self.errors(batch)
        for i, loss in zip(batch[2].tolist(), errors.mean(dim=1), strict=True):
            row = torch.autograd.grad(loss, list(self.net.parameters()), retain_graph=True)
            self.pending.append((i, torch.cat([r.flatten() for r in row]), loss.item()))
        return self.in_form(errors)

    def on_train_epoch_start(self) -> None:
        self.oracle = {}

    def after_update(self, weights: Tensor) -> None:
        J = torch.stack([row for _, row, _ in self.pending])
        update, mean = weights.to(J) @ J, J.mean(dim=0)
        for i, row, loss in self.pending:
            cosine = row @ update / row.norm() / update.norm()
            values = [float(cosine < -1e-3), row.norm().item(), 0.0, loss]
            values[2] = (row @ mean / row.norm() / mean.norm()).item()
            self.oracle.setdefault(i, []).append(values)
        self.pending = []

    def check(self, table: dict[str, Any]) -> None:
        assert table["index"].tolist() == sorted(self.oracle)
        rows = [np.mean(self.oracle[i], axis=0) for i in table["index"]]
        assert table["steps"].tolist() == [len(self.oracle[i]) for i in table["index"]]
        expected = dict(zip(("worse", "norm", "alignment", "loss"), np.array(rows).T, strict=True))
        for name, values in expected.items():
            np.testing.assert_allclose(table[name], values, rtol=1e-5, atol=1e-6, err_msg=name)


class Descent(JacobianDescent):
    """Tells the module about each update."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *more: Any) -> None:
        super().on_train_batch_end(trainer, pl_module, *more)
        if pl_module.pending and not trainer.fit_loop._should_accumulate():
            assert self.report is not None
            pl_module.after_update(self.report.weights)


def _third(batch: Any) -> Any:
    return batch[2].numpy()


@pytest.mark.parametrize("source", [True, 2, _third])
@pytest.mark.parametrize("aggregator", ["mean", "upgrad"])
def test_the_table_is_that_of_rows_by_autograd(source: Any, aggregator: str) -> None:
    module, callback = Watched(), Descent(aggregator, examples=source)
    loader = shuffled()
    sampler = loader.batch_sampler
    fit(module, loader, callbacks=[callback])
    module.check(callback.examples)
    assert callback.examples["index"].tolist() == list(range(N))  # of one epoch
    worse = callback.examples["worse"].sum()
    assert 0 < worse < N if aggregator == "mean" else worse == 0
    assert loader.batch_sampler is sampler


def test_all_examples_of_a_step_of_several_batches() -> None:
    module = Watched()
    callback = Descent("upgrad", accumulation="step", examples=True)
    fit(module, shuffled(), callbacks=[callback], accumulate_grad_batches=3)
    module.check(callback.examples)


def test_groups_and_drawing_with_replacement() -> None:
    class Grouped(Descent):
        def on_train_batch_end(self, *_: Any) -> None:
            pass

    draws = torch.utils.data.RandomSampler(data(), replacement=True, num_samples=40)
    callback = Grouped("upgrad", groups="layer", examples=True)
    fit(Watched(), DataLoader(data(), batch_size=8, sampler=draws), max_epochs=1,
        callbacks=[callback])  # fmt: skip
    assert callback.examples["steps"].sum() == 40
    assert callback.examples["steps"].max() > 1
    assert np.isfinite(callback.examples["worse"]).all()


@pytest.mark.slow
def test_workers_draw_ahead() -> None:
    module, callback = Watched(), Descent("mean", examples=True)
    loader = shuffled(num_workers=2, persistent_workers=True)
    fit(module, loader, callbacks=[callback], limit_train_batches=3)
    module.check(callback.examples)


def test_validation_with_the_same_loader_in_the_middle_of_an_epoch() -> None:
    class Validated(Watched):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            pass

    module, callback = Validated(), Descent("mean", examples=True)
    loader = shuffled()
    from tests.helpers.lightning import trainer

    trainer(callbacks=[callback], val_check_interval=2).fit(module, loader, loader)
    module.check(callback.examples)


def test_losses_that_are_skipped_are_left_out() -> None:
    class Broken(Watched):
        def errors(self, batch: Any) -> Tensor:
            hole = torch.where(batch[2] % 5 == 0, torch.nan, 0.0)
            return super().errors(batch) + hole.unsqueeze(1)

        def training_step(self, batch: Any, batch_idx: int = 0) -> Any:
            output = super().training_step(batch)
            self.pending = [each for each in self.pending if each[0] % 5]
            return output

    module, callback = Broken(), Descent("mean", nonfinite="skip", examples=True)
    with pytest.warns(RuntimeWarning):
        fit(module, shuffled(), callbacks=[callback], max_epochs=1)
    module.check(callback.examples)


def test_norms_alone() -> None:
    callback = JacobianDescent({"name": "clip", "norm": 1.0}, examples=2)
    fit(Watched(), shuffled(), callbacks=[callback])
    assert np.isfinite(callback.examples["norm"]).all()
    assert np.isnan(callback.examples["worse"]).all()


def test_manual_optimization() -> None:
    class Manual(ManualRegression):
        def errors(self, batch: Any) -> Tensor:
            return (self.net(batch[0]) - batch[1]).square()

    callback = JacobianDescent(examples=True)
    fit(Manual("instances", net=network().double()), shuffled(), callbacks=[callback])
    assert callback.examples["index"].tolist() == list(range(N))


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_a_run_that_is_resumed_continues_its_table(tmp_path: Path) -> None:
    def run(**arguments: Any) -> Any:
        callback = JacobianDescent("mean", examples=2)
        saving = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=3, save_top_k=-1)
        fit(Watched(), ResumableLoader(data(), 4), max_epochs=1, callbacks=[callback, saving],
            enable_checkpointing=True, **arguments)  # fmt: skip
        return callback.examples

    whole = run()
    assert len(run(max_steps=3)["index"]) == 12
    resumed = run(ckpt_path=tmp_path / "step=3.ckpt")
    for name, column in whole.items():
        np.testing.assert_array_equal(resumed[name], column)


def _of_both(rank: int, folder: Path) -> None:
    expected = torch.load(folder / "table.pt", weights_only=False)
    for accumulation in ("batch", "step"):
        own = DistributedSampler(data(24), shuffle=False)
        callback = JacobianDescent("mean", accumulation=accumulation, examples=True)
        fit(Watched(), DataLoader(data(24), batch_size=2, sampler=own), max_epochs=1,
            callbacks=[callback], strategy="ddp", devices=2, accumulate_grad_batches=2)  # fmt: skip
        for name, column in callback.examples.items():
            np.testing.assert_allclose(column, expected[accumulation][name], rtol=1e-6, atol=1e-7)
    assert dist.is_initialized()


@pytest.mark.slow
def test_two_processes_have_the_table_of_one(tmp_path: Path) -> None:
    found = {}
    for accumulation in ("batch", "step"):
        callback = JacobianDescent("mean", accumulation=accumulation, examples=True)
        fit(Watched(), DataLoader(data(24), batch_size=4), max_epochs=1, callbacks=[callback],
            accumulate_grad_batches=2)  # fmt: skip
        found[accumulation] = callback.examples
    torch.save(found, tmp_path / "table.pt")
    run_in_two_processes(_of_both, tmp_path)


def test_the_report_shows_twenty_of_them(tmp_path: Path) -> None:
    callback = JacobianDescent("mean", examples=True)
    report = JDReport(str(tmp_path))
    fit(Watched(), shuffled(), callbacks=[callback, report])
    shown = report.run.examples
    table = callback.examples
    assert len(shown) == 20
    keys = [(-row["worse"], row["alignment"]) for row in shown]  # type: ignore[operator]
    assert keys == sorted(keys)
    first = int(shown[0]["index"] or 0)
    assert shown[0]["loss"] == table["loss"][first]
    page = (tmp_path / "jd_report.html").read_text()
    assert page.count("<tr><td>") == 20
    assert f"<tr><td>{first}</td>" in page


class _Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(data())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"examples": 0.5}, "`examples` must be True .* got 0.5"),
        ({"examples": True, "rows": "tasks"}, "gradients of single examples, got rows='tasks'"),
        ({"examples": True, "aggregator": "uw"}, "gradients of single examples, got uw, a bal"),
    ],
)
def test_options_that_cannot_be(arguments: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        JacobianDescent(**arguments)


@pytest.mark.parametrize(
    ("source", "loader", "error", "message"),
    [
        ("id", shuffled, ArgumentError, "got 'id' and a batch that is a list of 3"),
        (7, shuffled, ArgumentError, "got 7 and a batch that is a list of 3"),
        (0, shuffled, ArgumentError, "one integer per example .*, got Tensor"),
        (lambda batch: [1, 2], shuffled, SetupError, "got 2 indices and 4 losses"),
        (True, lambda: DataLoader(_Stream(), 4), SetupError, "got DataLoader over _Stream. Put"),
        (True, lambda: ResumableLoader(data(), 4), SetupError, "got ResumableLoader. Put the"),
        (True, lambda: [shuffled()], SetupError, "requires one DataLoader, got a list of them"),
    ],
)
def test_indices_that_cannot_be_found(source: Any, loader: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        fit(Watched(), loader(), callbacks=[JacobianDescent(examples=source)])


@pytest.mark.parametrize("form", ["tasks", "matrix"])
def test_objectives_that_are_no_examples(form: Any) -> None:
    with pytest.raises(SetupError, match=r"one objective per example, got (tasks|instances x t)"):
        fit(Watched(form), shuffled(), callbacks=[JacobianDescent(examples=True)])


@pytest.mark.filterwarnings("ignore:Found `dataloader_iter`")
def test_an_iterator_of_batches_hides_them() -> None:
    class Iterating(Watched):
        def training_step(self, dataloader_iter: Any) -> Any:  # type: ignore[override]
            return super().training_step(next(dataloader_iter)[0])

    with pytest.raises(SetupError, match="got one that takes `dataloader_iter`"):
        fit(Iterating(), shuffled(), callbacks=[JacobianDescent(examples=True)])


def test_a_callback_that_was_not_asked_for_a_table() -> None:
    with pytest.raises(NotComputedError, match=r"JacobianDescent\(..., examples=True\)"):
        _ = JacobianDescent().examples
    empty = JacobianDescent(examples=True).examples
    assert_close(torch.tensor([len(column) for column in empty.values()]), torch.zeros(6).long())
