"""The optimizers that aggregate gradient and momentum, in Lightning."""

from pathlib import Path

import pytest

from lightning_jd import optim
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
from tests.integration.test_checkpoints import KillAfter, KilledError, saving

pytestmark = pytest.mark.filterwarnings(r"ignore:.*add the following callbacks. \[.ModelCheckpoint")


@pytest.mark.parametrize("step", [3, 8])
def test_a_run_that_is_killed_resumes(step: int, tmp_path: Path) -> None:
    def module() -> Regression:
        return Regression("scalar", optimizer=optim.SGD, lr=0.05, momentum=0.9)

    def data() -> ResumableLoader:
        return ResumableLoader(batches().dataset, batch_size=4)

    whole, resumed = module(), module()
    fit(whole, data())
    with pytest.raises(KilledError):
        fit(module(), data(), **saving(tmp_path, {}, KillAfter(step)))
    fit(resumed, data(), ckpt_path=tmp_path / f"step={step}.ckpt")
    assert_same_weights(resumed, whole, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
def test_with_jacobian_descent_in_every_precision(precision: str) -> None:
    run = Regression("tasks", optimizer=optim.AdamW, lr=0.01)
    fit(run, callbacks=[JacobianDescent("upgrad")], precision=precision)
    assert moved(run.net, network())
    assert all(bool(p.isfinite().all()) for p in run.parameters())
