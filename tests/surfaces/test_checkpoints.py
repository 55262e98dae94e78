"""A run that is interrupted and resumed is the run that was not, bit for bit."""

from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_jd.surfaces import JacobianDescent, JDModuleMixin, JDStrategy
from tests.helpers.lightning import (
    Regression,
    ResumableLoader,
    assert_same_weights,
    batches,
    fit,
)

# The trainers that resume write no checkpoints themselves, which Lightning thinks worth a warning.
pytestmark = pytest.mark.filterwarnings(r"ignore:.*add the following callbacks. \[.ModelCheckpoint")
EVERY_STEP = {"every_n_train_steps": 1, "save_top_k": -1, "filename": "{step}"}


class Flagged(JDModuleMixin, Regression):
    jacobian_descent = "rgw"


SURFACES: dict[str, Any] = {
    "callback": (Regression, lambda: {"callbacks": [JacobianDescent("rgw")]}),
    "strategy": (Regression, lambda: {"strategy": JDStrategy("rgw")}),
    "flag": (Flagged, dict),
}


class KilledError(Exception):
    pass


class KillAfter(L.Callback):
    """Ends a run without warning, right after a checkpoint was written."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step == self.step:
            raise KilledError


def data() -> ResumableLoader:
    return ResumableLoader(batches().dataset, batch_size=4)


def saving(folder: Path, arguments: dict[str, Any], *more: L.Callback) -> dict[str, Any]:
    callbacks = [*arguments.get("callbacks", []), *more, ModelCheckpoint(folder, **EVERY_STEP)]
    return {**arguments, "callbacks": callbacks, "enable_checkpointing": True}


def checkpoint(folder: Path, aggregator: str = "rgw") -> Path:
    fit(Regression(), **saving(folder, {"callbacks": [JacobianDescent(aggregator)]}))
    return folder / "step=4.ckpt"


@pytest.mark.slow
@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("step", [1, 4, 6, 9])
def test_killed_and_resumed_equals_uninterrupted(surface: str, step: int, tmp_path: Path) -> None:
    make, arguments = SURFACES[surface]
    whole, killed, resumed = (make("instances", lr=0.05, momentum=0.9) for _ in range(3))
    fit(whole, data(), **arguments())
    with pytest.raises(KilledError):
        fit(killed, data(), **saving(tmp_path, arguments(), KillAfter(step)))
    fit(resumed, data(), ckpt_path=tmp_path / f"step={step}.ckpt", **arguments())
    assert_same_weights(resumed, whole, rtol=0, atol=0)


@pytest.mark.parametrize("step", [1, 3])
def test_with_step_accumulation(step: int, tmp_path: Path) -> None:
    def arguments() -> dict[str, Any]:
        callback = JacobianDescent("rgw", accumulation="step")
        return {"callbacks": [callback], "accumulate_grad_batches": 2}

    whole, killed, resumed = Regression(), Regression(), Regression()
    fit(whole, data(), **arguments())
    with pytest.raises(KilledError):
        fit(killed, data(), **saving(tmp_path, arguments(), KillAfter(step)))
    fit(resumed, data(), ckpt_path=tmp_path / f"step={step}.ckpt", **arguments())
    assert_same_weights(resumed, whole, rtol=0, atol=0)


@pytest.mark.parametrize("aggregator", ["upgrad", "rgw"])
def test_a_checkpoint_of_version_0_1_resumes(aggregator: str, tmp_path: Path) -> None:
    """Version 0.1 saved name, generator state as a tensor, and the number of skipped objectives."""
    path = checkpoint(tmp_path, aggregator)
    saved = torch.load(path, weights_only=True)
    state = saved["callbacks"]["JacobianDescent"]
    random = {"_extra_state": torch.Generator().manual_seed(3).get_state()}
    old = {"name": aggregator, "aggregator": random if aggregator == "rgw" else {}, "skipped": 2}
    assert state.keys() == old.keys()
    assert state["aggregator"].keys() == old["aggregator"].keys()
    saved["callbacks"]["JacobianDescent"] = old
    torch.save(saved, path)
    callback = JacobianDescent(aggregator)
    fit(Regression(), callbacks=[callback], ckpt_path=path)
    assert callback.skipped == 2
