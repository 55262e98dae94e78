"""Rows of several micro-batches: how they are added up, listed, and left out."""

import pytest
import torch
from torch.testing import assert_close

from lightning_jd.core.rows._accumulated import Store


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
