"""What happens around the steps: nothing stays behind, hooks keep their order, fits repeat."""

import copy
import signal
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.callbacks import LearningRateFinder
from lightning.pytorch.tuner import Tuner
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_jd.surfaces import JacobianDescent, JDModuleMixin
from tests.helpers.lightning import (
    Regression,
    assert_same_weights,
    batches,
    fit,
    moved,
    trainer,
)

WRAPPED = {"training_step", "backward", "teardown"}


def patched(run: L.Trainer) -> set[str]:
    return WRAPPED & vars(run.strategy).keys()


def test_nothing_stays_patched_after_a_fit() -> None:
    run = fit(Regression(), callbacks=[JacobianDescent()])
    assert not patched(run)


class Failing(Regression):
    """Raises in one of its hooks; where there are batches, in the third."""

    def __init__(self, error: BaseException, hook: str) -> None:
        super().__init__()
        self.lr = 0.05
        self.error, self.hook = error, hook

    def fail_in(self, hook: str, batch_idx: int = 2) -> None:
        if hook == self.hook and batch_idx == 2:
            raise self.error

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Any:
        self.fail_in("training_step", batch_idx)
        return super().training_step(batch, batch_idx)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.fail_in("on_train_batch_end", batch_idx)

    def on_after_backward(self) -> None:
        self.fail_in("on_after_backward")

    def on_fit_start(self) -> None:
        self.fail_in("on_fit_start")

    def on_fit_end(self) -> None:
        self.fail_in("on_fit_end")


@pytest.mark.parametrize(
    "hook",
    ["on_fit_start", "training_step", "on_after_backward", "on_train_batch_end", "on_fit_end"],
)
def test_nothing_stays_patched_after_an_error(hook: str) -> None:
    run = trainer(callbacks=[JacobianDescent()])
    with pytest.raises(ZeroDivisionError):
        run.fit(Failing(ZeroDivisionError("on purpose"), hook), batches())
    assert not patched(run)
    module, fresh = Regression(), Regression()  # the callback is as good as new
    fit(module, callbacks=run.callbacks)
    fit(fresh, callbacks=[JacobianDescent()])
    assert_same_weights(module, fresh, rtol=0, atol=0)


def test_nothing_stays_patched_after_an_interrupt() -> None:
    handler = signal.getsignal(signal.SIGINT)
    run = trainer(callbacks=[JacobianDescent()])
    try:
        with pytest.raises(SystemExit):
            run.fit(Failing(KeyboardInterrupt(), "on_train_batch_end"), batches())
    finally:
        signal.signal(signal.SIGINT, handler)  # Lightning switches it off
    assert not patched(run)


class Recorder(L.Callback):
    """Writes down the hooks that are called, and whether gradients are there."""

    HOOKS = (
        "on_train_batch_start",
        "on_before_zero_grad",
        "on_before_backward",
        "on_after_backward",
        "on_before_optimizer_step",
        "on_train_batch_end",
    )

    def __init__(self) -> None:
        self.calls: list[Any] = []
        for hook in self.HOOKS:
            setattr(self, hook, self._recording(hook))

    def _recording(self, hook: str) -> Any:
        def record(trainer: Any, module: Any, *args: Any) -> None:
            gradients = all(p.grad is not None for p in module.parameters())
            losses = [a.item() for a in args if isinstance(a, Tensor)]
            self.calls.append((hook, gradients, losses))

        return record


@pytest.mark.parametrize("accumulate", [1, 2])
def test_hooks_are_called_in_the_usual_order_with_the_usual_values(accumulate: int) -> None:
    ours, plain = Recorder(), Recorder()
    arguments = {"accumulate_grad_batches": accumulate}
    fit(Regression("instances"), callbacks=[JacobianDescent("mean"), ours], **arguments)
    fit(Regression("scalar"), callbacks=[plain], **arguments)
    assert [call[:2] for call in ours.calls] == [call[:2] for call in plain.calls]
    losses = [torch.tensor([call[2] for call in r.calls if call[2]]) for r in (ours, plain)]
    torch.testing.assert_close(*losses)


class Reusable(JDModuleMixin, Regression):
    jacobian_descent = "rgw"


@pytest.mark.parametrize("surface", ["callback", "flag"])
def test_two_fits_in_a_row_equal_two_fresh_ones(surface: str) -> None:
    make = Reusable if surface == "flag" else Regression
    callbacks = {"callback": lambda: [JacobianDescent("rgw")], "flag": list}[surface]
    fresh = make()
    fit(fresh, callbacks=callbacks())
    shared = callbacks()
    for _ in range(2):  # random weights: the generator of the aggregator must start again
        module = make()
        fit(module, callbacks=shared)
        assert_same_weights(module, fresh, rtol=0, atol=0)


class Tuned(Regression):
    def __init__(self, form: Any = "instances") -> None:
        super().__init__(form)
        self.lr = 0.05
        self.batch_size = 2

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr)

    def train_dataloader(self) -> Any:
        return DataLoader(batches().dataset, batch_size=self.batch_size)


@pytest.mark.parametrize("as_callback", [True, False])
def test_lr_find(as_callback: bool) -> None:
    found = []
    for form, ours in (("instances", [JacobianDescent("mean")]), ("scalar", [])):
        module = Tuned(form)
        if as_callback:
            finder = LearningRateFinder(num_training_steps=10)
            fit(module, batches(n=48), callbacks=[*ours, finder])
            found.append(finder.optimal_lr.results["loss"])
        else:
            result = Tuner(trainer(callbacks=ours)).lr_find(module, num_training=10)
            found.append(result.results["loss"])
        assert moved(module, Tuned(form)) == as_callback  # the search itself leaves no trace
    torch.testing.assert_close(*map(torch.tensor, found))


@pytest.mark.slow
def test_batch_size_scaling() -> None:
    module, plain = Tuned(), Tuned("scalar")
    run = trainer(callbacks=[JacobianDescent("rgw")])
    start = copy.deepcopy(run.callbacks[0].state_dict())
    arguments = {"steps_per_trial": 1, "max_trials": 2, "init_val": 2}
    size = Tuner(run).scale_batch_size(module, **arguments)
    assert size == Tuner(trainer()).scale_batch_size(plain, **arguments) > 2
    assert not moved(module, Tuned())
    assert not patched(run)
    state = run.callbacks[0].state_dict()
    torch.testing.assert_close(state["aggregator"], start["aggregator"], rtol=0, atol=0)
