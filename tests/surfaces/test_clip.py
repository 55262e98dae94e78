"""Clip in a Trainer; two processes are in `test_ddp.py`."""

import pytest
from torch import Tensor
from torch.testing import assert_close

from lightning_jd import Clip, JacobianDescent
from tests.helpers.lightning import Regression, batches, fit, weights


@pytest.mark.parametrize("precision", ["bf16-mixed", "32-true"])
@pytest.mark.parametrize("accumulation", ["batch", "step"])
def test_in_lightning_nothing_is_clipped_below_the_bound(precision: str, accumulation: str) -> None:
    """With a bound that is never reached, it is the mean of the losses, in every precision."""

    def trained(method: object) -> dict[str, Tensor]:
        module = Regression("instances")
        callback = JacobianDescent(method, accumulation=accumulation)
        fit(module, batches(), callbacks=[callback], precision=precision, accumulate_grad_batches=2)
        return weights(module)

    tolerance = {"rtol": 0.05, "atol": 0.01} if precision == "bf16-mixed" else {}
    assert_close(trained(Clip(1e9)), trained("mean"), **tolerance)
    short = trained({"name": "clip", "norm": 1e-3})
    assert any((short[name] - plain).abs().max() > 1e-3 for name, plain in trained("mean").items())
