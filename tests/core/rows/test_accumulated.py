"""Rows of several micro-batches: how they are added up, listed, and left out."""

import pytest
import torch
from torch.testing import assert_close

from lightning_jd.aggregators import Sum
from lightning_jd.core import collect, compute_update
from lightning_jd.core.rows._accumulated import Store
from lightning_jd.engines import Objectives


def store_of_three() -> Store:
    store = Store(torch.zeros(0, 2))
    store.add("tasks", ("a", "b"), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([5.0, 6.0]))
    store.add("tasks", ("a",), torch.tensor([[3.0, 6.0]]), torch.tensor([9.0]))
    return store


@pytest.mark.parametrize(
    ("mean", "row", "loss"), [(False, [4.0, 8.0], 14.0), (True, [2.0, 4.0], 7.0)]
)
def test_the_row_of_a_task_is_that_of_the_micro_batches_that_have_it(
    mean: bool, row: list[float], loss: float
) -> None:
    store = store_of_three()
    assert_close(store.rows(mean=mean), torch.tensor([row, [3.0, 4.0]]))
    assert_close(store.losses(mean=mean), [torch.tensor([loss, 6.0])])
    store.keep([0])
    assert_close(store.rows(mean=mean), torch.tensor([row]))


def test_what_is_left_without_a_task_is_a_mean_over_micro_batches() -> None:
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    rows = collect([("x", x)], nonfinite="skip", keeps=True)
    for k in (1, 3):
        losses = {"a": k * x.sum(), "b": (0 * x).sum().sqrt(), "c": x.square().sum()}
        rows.add(Objectives.of(losses))
    update = compute_update(rows, Sum())
    assert (update.report.names, update.report.skipped) == (("a", "c"), ("b",))
    assert_close(update.gradients[0], (2 + 2 * x).detach())
