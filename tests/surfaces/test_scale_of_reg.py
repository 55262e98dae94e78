"""The kind of the rows reaches UPGrad and DualProj in every surface: it is the scale of `reg`."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing import assert_close

from lightning_jd.core import Report
from lightning_jd.linalg import RelativeTo, upgrad_weights
from lightning_jd.surfaces import JacobianDescent
from tests.helpers.lightning import ManualRegression, Regression, batches, fit
from tests.helpers.two_processes import run_in_two_processes

#: Three tasks of which the first counts so little that `reg` relative to the trace gives it up.
UNITS = torch.tensor([1e-3, 1.0, 10.0])


class Uneven(Regression):
    def in_form(self, errors: Tensor) -> Any:
        opposed = errors - 0.8 * errors.roll(1, dims=1)  # what helps a task harms the next one
        return super().in_form(opposed * UNITS)


class ManualUneven(Uneven, ManualRegression):
    pass


class Shares(Regression):
    """The loss of each process, in units of its own."""

    def in_form(self, errors: Tensor) -> Any:
        return errors.mean() * (1e-3 if dist.get_rank() else 1.0)


def expected(form: str, m: int) -> RelativeTo:
    blocks = tuple(i % 3 for i in range(m))
    return {"instances": "trace", "matrix": blocks}.get(form, "row")


def check(report: Report | None, form: str) -> None:
    """The weights are those of the scale that belongs to the rows, and of no other one."""
    assert report is not None
    for group in report.groups.values():
        assert group.gramian is not None
        assert group.weights is not None
        mine = expected(form, len(report.names))
        found = upgrad_weights(group.gramian, relative_to=mine)
        assert_close(group.weights, found, rtol=1e-5, atol=1e-6)
        for other in {"trace", "row"} - {mine}:
            found = upgrad_weights(group.gramian, relative_to=other)
            assert not torch.allclose(group.weights, found, rtol=1e-3), other


FORMS = ["instances", "matrix", "tasks", "list"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("cls", "options", "accumulate"),
    [
        (Uneven, {}, 1),
        (Uneven, {"accumulation": "step"}, 2),
        (Uneven, {"groups": "layer"}, 1),
        (Uneven, {"nonfinite": "skip"}, 1),
        (ManualUneven, {}, 1),
    ],
    ids=["batch", "accumulated", "groups", "skip", "manual"],
)
def test_in_lightning(
    cls: type[Regression], options: dict[str, Any], accumulate: int, form: str
) -> None:
    callback = JacobianDescent("upgrad", **options)
    data = batches(n=8, batch_size=8 // accumulate)
    fit(cls(form), data, callbacks=[callback], accumulate_grad_batches=accumulate, max_epochs=1)
    check(callback.report, form)


def train_in_two(rank: int, folder: Path) -> None:
    runs: list[tuple[str, Any, dict[str, Any]]] = [(form, Uneven(form), {}) for form in FORMS]
    runs += [("tasks", Uneven("tasks"), {"accumulation": "step"})]
    runs += [("ranks", Shares(), {"rows": "ranks"})]
    for form, module, options in runs:
        callback = JacobianDescent("upgrad", **options)
        fit(module, batches(), callbacks=[callback], strategy="ddp", devices=2, max_epochs=1)
        report = callback.report
        assert report is not None
        assert report.weights is not None
        assert report.gramian is not None
        scale = expected(form, len(report.names))
        found = upgrad_weights(report.gramian, relative_to=scale)
        assert_close(report.weights, found, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_in_two_processes(tmp_path: Path) -> None:
    run_in_two_processes(train_in_two, tmp_path)


def test_a_checkpoint_of_0_2_is_loaded() -> None:
    # What 0.2.0 wrote for upgrad: it has no state.
    callback = JacobianDescent("upgrad")
    written = callback.state_dict()
    assert written == {"name": "upgrad", "aggregator": {}, "skipped": 0}
    callback.load_state_dict({"name": "upgrad", "aggregator": {}, "skipped": 3})
    assert callback.skipped == 3
