"""Modules that return a scalar, unmodified: one line on the Trainer splits it."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor

from lightning_jd import fabric as jd
from lightning_jd.errors import ArgumentError, GraphError
from lightning_jd.surfaces import JacobianDescent, JDModuleMixin, JDStrategy
from tests.helpers.halves import Runs, assert_halves_equal_the_whole, check, shared_batches
from tests.helpers.lightning import (
    Regression,
    assert_same_weights,
    batches,
    fit,
    moved,
    trainer,
    weights,
)

Loss = Callable[[Tensor], Any]


class Written(Regression):
    """Computes its loss as it is told to."""

    def __init__(self, loss: Loss, **arguments: Any) -> None:
        super().__init__("scalar", **arguments)
        self.loss = loss

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        return self.loss(self.errors(batch))


class WrittenManually(Written):
    def __init__(self, loss: Loss) -> None:
        super().__init__(loss)
        self.automatic_optimization = False

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        loss = super().training_step(batch, batch_idx)
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss["loss"] if isinstance(loss, dict) else loss)
        optimizer.step()


def summed(errors: Tensor) -> Tensor:
    """A scalar, as most modules return it."""
    return errors[:, 0].mean() + 0.1 * errors[:, 1].mean() - (1 + errors[:, 2]).log().mean() / -2


def tasks(errors: Tensor) -> Any:
    """The same in parts."""
    losses = errors[:, 0].mean(), 0.1 * errors[:, 1].mean(), (1 + errors[:, 2]).log().mean() / 2
    return {"loss": dict(zip(("mean", "mean_2", "mean_3"), losses, strict=True))}


def averaged(errors: Tensor) -> Tensor:
    return 2 * errors.mean()


def instances(errors: Tensor) -> Tensor:
    return 2 * errors.mean(dim=1)


FORMS = {"terms": (summed, tasks), "instances": (averaged, instances)}
CLOSE = {"rtol": 1e-4, "atol": 1e-6}


@pytest.mark.parametrize("split", FORMS)
@pytest.mark.parametrize("in_dict", [False, True])
@pytest.mark.parametrize("aggregator", ["upgrad", "graddrop"])
def test_equal_to_losses_that_are_returned_split(
    split: str, in_dict: bool, aggregator: str
) -> None:
    scalar, parts = FORMS[split]
    ours = Written((lambda e: {"loss": scalar(e), "extra": 1}) if in_dict else scalar)
    theirs = Written(parts)
    callback = JacobianDescent(aggregator, split=split)
    fit(ours, callbacks=[callback])
    fit(theirs, callbacks=[JacobianDescent(aggregator)])
    assert moved(ours, Regression())
    assert_same_weights(ours, theirs, **CLOSE)
    assert callback.report is not None
    assert len(callback.report.names) == (3 if split == "terms" else 4)
    assert callback.report.slow == {}


class Flagged(JDModuleMixin, Written):
    jacobian_descent = {"aggregator": "upgrad", "split": "auto"}  # noqa: RUF012


@pytest.mark.parametrize("split", FORMS)
@pytest.mark.parametrize("surface", ["strategy", "flag", "manual", "fabric"])
def test_every_surface(split: str, surface: str) -> None:
    scalar, parts = FORMS[split]
    theirs = Written(parts)
    fit(theirs, callbacks=[JacobianDescent("upgrad")])
    if surface == "strategy":
        ours: Any = Written(scalar)
        fit(ours, strategy=JDStrategy("upgrad", split="auto"))
    elif surface == "flag":
        ours = Flagged(scalar)
        fit(ours)
    elif surface == "manual":
        ours = WrittenManually(scalar)
        fit(ours, callbacks=[JacobianDescent("upgrad", split=split)])
    else:
        ours = with_fabric(scalar, split)
    assert_same_weights(ours.net, theirs.net, **CLOSE)


def with_fabric(scalar: Loss, split: str) -> Any:
    recipe, fabric = Written(scalar), Fabric(accelerator="cpu", devices=1)
    model = fabric.setup_module(recipe.net)
    optimizer = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.05))
    for _ in range(2):
        for x, y in batches():
            optimizer.zero_grad()
            loss = scalar((model(x) - y).square())
            jd.backward(fabric, loss, model, "upgrad", split=split)
            optimizer.step()
    return recipe


@pytest.mark.parametrize("split", FORMS)
@pytest.mark.parametrize("accumulation", ["batch", "step"])
def test_accumulation(split: str, accumulation: str) -> None:
    scalar, parts = FORMS[split]
    ours, theirs = Written(scalar), Written(parts)
    for module, how in ((ours, split), (theirs, None)):
        callback = JacobianDescent("upgrad", accumulation=accumulation, split=how)
        fit(module, callbacks=[callback], accumulate_grad_batches=3)
    assert_same_weights(ours, theirs, **CLOSE)


class Logging(Written):
    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        errors = self.errors(batch)
        first, second = errors[:, 0].mean(), errors[:, 1].mean()
        self.log("train/first", first)
        self.log_dict({"train/second": 0.1 * second, "other": errors.detach().max()})
        return first + 0.1 * second if batch_idx % 3 else first + 0.1 * second + errors[:, 2].mean()


def test_terms_are_called_as_they_are_logged_also_if_one_is_missing() -> None:
    callback = JacobianDescent(split="terms", log={"every_n_steps": 1})
    run = fit(Logging(summed), callbacks=[callback])
    assert callback.report is not None
    assert callback.report.names == ("train/first", "train/second")
    found = run.callback_metrics
    assert found["jd/loss/train/first"] == pytest.approx(found["train/first"].item(), rel=1e-5)
    assert {"jd/weight/train/second", "jd/weight/mean_3"} <= found.keys()


@pytest.mark.parametrize(
    ("loss", "split", "message"),
    [
        (lambda e: e.std(), "auto", "Nor has it several terms"),
        (lambda e: e.std(), "instances", r"Std is no sum.*Its graph ends with\nStd, a scalar"),
        (lambda e: e.mean(), "terms", r"a sum of 2 to 64 terms to be split, got 1 \(Mean\)"),
    ],
)
def test_what_cannot_be_split_is_an_error_in_the_first_batch(
    loss: Loss, split: str, message: str
) -> None:
    run = trainer(callbacks=[JacobianDescent(split=split)])
    with pytest.raises(GraphError, match=f"(?s){message}"):
        run.fit(Written(loss), batches())
    assert run.fit_loop.batch_idx == 0


def test_wrong_options() -> None:
    with pytest.raises(ArgumentError, match="`split` cannot be combined with rows='ranks'"):
        JacobianDescent(rows="ranks", split="terms")
    with pytest.raises(ArgumentError, match="`split` must be one of 'terms', 'instances', 'auto'"):
        JDStrategy(split="both")


def test_a_nan_term_is_named_or_skipped() -> None:
    def spoiled(errors: Tensor) -> Tensor:
        return errors[:, 0].mean() + (errors[:, 1].mean() - 100).log()

    with pytest.raises(
        Exception, match="Losses must be finite, got NaN or infinity in 1 of 2: 'log'"
    ):
        fit(Written(spoiled), callbacks=[JacobianDescent(split="terms")])
    module = Written(spoiled)
    callback = JacobianDescent(split="terms", nonfinite="skip")
    with pytest.warns(RuntimeWarning, match="nonfinite='skip'"):
        fit(module, callbacks=[callback], max_epochs=1)
    assert callback.skipped == 6
    assert moved(module, Regression())


def runs() -> Runs:
    found: dict[str, Any] = {}
    for split, (scalar, _) in FORMS.items():
        for strategy in ("ddp", "jd_ddp"):

            def run(split: str = split, scalar: Loss = scalar, strategy: str = strategy) -> Any:
                module = Written(scalar)
                distributed = torch.distributed.is_initialized()
                arguments: dict[str, Any] = {}
                if distributed:
                    arguments = {
                        "devices": 2,
                        "strategy": strategy,
                        "use_distributed_sampler": False,
                    }
                if strategy == "jd_ddp" and distributed:
                    from lightning_jd.surfaces import JDDDPStrategy

                    arguments["strategy"] = JDDDPStrategy(split=split)
                else:
                    arguments["callbacks"] = [JacobianDescent(split=split)]
                fit(module, shared_batches(), **arguments)
                return weights(module)

            found[f"{split} {strategy}"] = (run, {"rtol": 1e-4, "atol": 1e-5})
    return found


def work(rank: int, folder: Path) -> None:
    warnings.simplefilter("ignore")
    check(runs(), folder)


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path) -> None:
    assert_halves_equal_the_whole(work, runs(), tmp_path)
