"""Methods with a state through Lightning: two fits, a run that is killed, groups, two processes."""

import multiprocessing
import os
import random
import signal
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import lightning.pytorch as L
import pytest
import torch

from lightning_jd.aggregators import Method, available, resolve
from lightning_jd.aggregators._memory import Stateful
from lightning_jd.errors import ArgumentError
from lightning_jd.surfaces import JacobianDescent
from tests.helpers.lightning import (
    Regression,
    ResumableLoader,
    assert_same_weights,
    batches,
    fit,
    moved,
    network,
)
from tests.helpers.two_processes import run_in_two_processes
from tests.surfaces.test_checkpoints import KillAfter, KilledError, saving

pytestmark = [
    pytest.mark.filterwarnings(r"ignore:.*add the following callbacks. \[.ModelCheckpoint"),
]

METHODS: dict[str, type[Method]] = available()
STATEFUL = sorted(name for name, cls in METHODS.items() if issubclass(cls, Stateful))
RANDOM = ["graddrop", "pcgrad", "rgw", "rlw"]


def form(method: Method) -> str:
    return "matrix" if method.halves else "tasks"


def module(method: Method) -> Regression:
    kind = _Heads if method.at_features else Regression
    return kind(form(method), lr=0.05, momentum=0.9)  # type: ignore[arg-type]


def data() -> ResumableLoader:
    return ResumableLoader(batches().dataset, batch_size=4)


@pytest.mark.slow
@pytest.mark.parametrize("groups", [None, "layer"])
@pytest.mark.parametrize("name", [*STATEFUL, *RANDOM])
def test_killed_and_resumed_equals_uninterrupted(
    name: str, groups: str | None, tmp_path: Path
) -> None:
    if name == "weightsevery" and groups:
        return  # it refuses them

    def arguments() -> dict[str, Any]:
        return {"callbacks": [JacobianDescent(name, groups=groups)]}

    step = 1 + len(name) % 9
    whole, killed, resumed = (module(resolve(name)) for _ in range(3))
    fit(whole, data(), **arguments())
    with pytest.raises(KilledError):
        fit(killed, data(), **saving(tmp_path, arguments(), KillAfter(step)))
    torch.manual_seed(step)  # what the rest of the program draws does not matter
    fit(resumed, data(), ckpt_path=tmp_path / f"step={step}.ckpt", **arguments())
    assert_same_weights(resumed, whole, rtol=0, atol=0)
    assert moved(whole.net, network())


@pytest.mark.slow
def test_a_second_fit_is_the_first_one_again() -> None:
    for name in [*STATEFUL, *RANDOM]:
        callback = JacobianDescent(name)
        runs = []
        for _ in range(2):
            runs.append(module(callback.settings.aggregator))
            fit(runs[-1], callbacks=[callback])
        for a, b in zip(runs[0].parameters(), runs[1].parameters(), strict=True):
            assert torch.equal(a, b), name


#: Where a process may die: before a step, between gradients and update, after a step.
HOOKS = ("on_train_batch_start", "on_before_optimizer_step", "on_train_batch_end")


def _kill(step: int, trainer: L.Trainer, *_: Any) -> None:
    if trainer.global_step == step:
        os.kill(os.getpid(), signal.SIGKILL)


def _train_until_killed(name: str, step: int, hook: str, folder: Path) -> None:
    kill = L.Callback()
    setattr(kill, hook, partial(_kill, step))
    method = resolve(name)
    fit(module(method), data(), **saving(folder, {"callbacks": [JacobianDescent(method)]}, kill))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["upgrad", "gradvac", "pcgrad", "famo"])
def test_after_kill_minus_nine_at_a_random_step(name: str, tmp_path: Path) -> None:
    """Without a state, with one, at random, and a balancer: the signal knows no other kinds."""
    draw = random.Random(name)
    step, hook = draw.randint(2, 11), draw.choice(HOOKS)
    # Not by a fork of this process: autograd refuses to run in one, once a device has threads.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=_train_until_killed, args=(name, step, hook, tmp_path))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    whole, resumed = (module(resolve(name)) for _ in range(2))
    fit(whole, data(), callbacks=[JacobianDescent(name)])
    written = max(tmp_path.glob("*.ckpt"), key=lambda path: int(path.stem.removeprefix("step=")))
    assert int(written.stem.removeprefix("step=")) in (step - 1, step)
    fit(resumed, data(), ckpt_path=written, callbacks=[JacobianDescent(name)])
    assert_same_weights(resumed, whole, rtol=0, atol=0)
    assert moved(whole.net, network())


@pytest.mark.parametrize("name", ["dwa", "famo", "uw"])
def test_a_checkpoint_of_a_method_with_a_state_loads_without_pickle(
    name: str, tmp_path: Path
) -> None:
    run = fit(module(resolve(name)), callbacks=[JacobianDescent(name)])
    run.save_checkpoint(tmp_path / "last.ckpt")
    content = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert content["callbacks"]["JacobianDescent"]["name"] == name


def test_dwa_hears_of_epochs() -> None:
    callback = JacobianDescent("dwa")
    fit(module(callback.settings.aggregator), callbacks=[callback], max_epochs=3)
    assert callback.report is not None
    weights = callback.report.weights
    assert weights is not None
    assert float(weights.max() - weights.min()) > 1e-3


@pytest.mark.parametrize("name", ["uw", "gls", "gradnorm", "dbmtl"])
def test_with_step_accumulation_a_method_sees_the_losses_of_the_whole_step(name: str) -> None:
    pieces, whole = Regression("tasks", lr=0.05), Regression("tasks", lr=0.05)
    callback = JacobianDescent(name, accumulation="step")
    fit(pieces, batches(batch_size=2), callbacks=[callback], accumulate_grad_batches=2)
    fit(whole, batches(batch_size=4), callbacks=[JacobianDescent(name)])
    assert_same_weights(pieces, whole, rtol=1e-4, atol=1e-5)


def test_batches_of_a_step_are_the_first_and_the_second_sample_in_turn() -> None:
    callback = JacobianDescent("modo", accumulation="step")
    fit(Regression("tasks"), callbacks=[callback], accumulate_grad_batches=2, max_epochs=1)
    assert callback.report is not None
    halves = [f"{task} ({half} half)" for half in ("first", "second") for task in "abc"]
    assert list(callback.report.names) == halves


def test_a_method_that_skips_a_loss_keeps_the_state_of_its_task() -> None:
    class Sometimes(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            found = super().training_step(batch, batch_idx)
            if batch_idx == 2:
                found["loss"]["b"] = found["loss"]["b"] * torch.nan
            return found

    callback = JacobianDescent("uw", nonfinite="skip")
    with pytest.warns(RuntimeWarning, match="'b' of the objectives were NaN"):
        fit(Sometimes("tasks"), callbacks=[callback])
    state = callback.settings.aggregator.state_dict()["_extra_state"]["groups"][""]
    kept = state["kept"]["s/adam"]
    counts = dict(zip(kept["names"], kept["value"][:, 0].tolist(), strict=True))
    assert counts == {"a": 12.0, "b": 10.0, "c": 12.0}


def _half(rank: int) -> Any:
    """The share of one of two processes in every batch."""
    own = [i for i in range(24) if i // 2 % 2 == rank]
    return torch.utils.data.DataLoader(
        torch.utils.data.Subset(batches().dataset, own), batch_size=2
    )


def _two_processes(rank: int, folder: Path, name: str, make: Any, epochs: int = 2) -> None:
    run, callback = make(), JacobianDescent(name, check_replicas=1)
    two = {"strategy": "ddp", "devices": 2, "use_distributed_sampler": False}
    fitted = fit(run, _half(rank), callbacks=[callback], max_epochs=epochs, **two)
    fitted.save_checkpoint(folder / "last.ckpt")
    if rank == 0:
        torch.save(run.net.state_dict(), folder / "net.pt")


class _Heads(Regression):
    """A trunk and one head per task, each with a loss of its own."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        features, last = self.net[:-1](x), self.net[-1]
        found = {}
        for k, name in enumerate("abc"):
            out = features @ last.weight[k] + last.bias[k]
            found[name] = (out - y[:, k]).square()
        if self.form == "matrix":
            return torch.stack(list(found.values()), dim=1)
        return {"loss": {name: errors.mean() for name, errors in found.items()}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "form", "cls"),
    [
        *[(name, "tasks", Regression) for name in ("graddrop", "moco", "uw")],
        *[(name, "matrix", Regression) for name in ("modo", "sdmgrad")],  # two samples
        *[("fromfeatures", form, _Heads) for form in ("tasks", "matrix")],
    ],
)
def test_two_processes_are_one_on_the_whole_batch(
    name: str, form: str, cls: type[Regression], tmp_path: Path
) -> None:
    make = partial(cls, form, lr=0.05)  # type: ignore[arg-type]
    run_in_two_processes(partial(_two_processes, name=name, make=make), tmp_path)
    alone, callback = make(), JacobianDescent(name)
    fit(alone, callbacks=[callback])
    assert moved(alone.net, network())
    found = torch.load(tmp_path / "net.pt")
    torch.testing.assert_close(found, dict(alone.net.state_dict()), rtol=1e-3, atol=1e-4)
    assert callback.report is not None
    if cls is _Heads:
        assert set(callback.report.paths.values()) == {"features"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dwa", "gradvac", "moco", "uw"])
def test_one_process_continues_the_run_of_two(name: str, tmp_path: Path) -> None:
    make = partial(Regression, "tasks", lr=0.05)
    run_in_two_processes(partial(_two_processes, name=name, make=make, epochs=1), tmp_path)
    resumed, alone = make(), make()
    fit(resumed, ckpt_path=tmp_path / "last.ckpt", callbacks=[JacobianDescent(name)])
    fit(alone, callbacks=[JacobianDescent(name)])
    assert_same_weights(resumed, alone, rtol=1e-3, atol=1e-4)


def test_cheaper_weights_are_arguments_of_every_surface() -> None:
    from lightning_jd.aggregators import FromFeatures, WeightsEvery
    from lightning_jd.surfaces import JDModuleMixin, JDStrategy

    arguments: dict[str, Any] = {"weights_from": "features", "weights_every": 3}

    class Flagged(JDModuleMixin, _Heads):
        jacobian_descent: ClassVar[Any] = {"aggregator": "upgrad", **arguments}

    runs = [_Heads(), _Heads(), _Heads(), Flagged()]
    fit(runs[0], callbacks=[JacobianDescent(WeightsEvery(FromFeatures("upgrad"), n=3))])
    fit(runs[1], callbacks=[JacobianDescent("upgrad", **arguments)])
    fit(runs[2], strategy=JDStrategy("upgrad", **arguments))
    fit(runs[3])
    for run in runs[1:]:
        assert_same_weights(run, runs[0], rtol=0, atol=0)
    assert moved(runs[0].net, network())


def test_weights_that_cannot_be_cheaper_are_refused() -> None:
    for spec in ("graddrop", "modo", "uw"):
        with pytest.raises(ArgumentError, match=f"`weights_from` must compute .* got {spec}"):
            JacobianDescent(spec, weights_from="features")
        with pytest.raises(ArgumentError, match=f"`weights_every` must compute .* got {spec}"):
            JacobianDescent(spec, weights_every=2)
    with pytest.raises(ArgumentError, match="`n` must be"):
        JacobianDescent("upgrad", weights_every=0)
