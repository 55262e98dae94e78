"""Metrics on the device: the numbers of the CPU, and states that stay on the device."""

import torch
from torch.testing import assert_close
from torch.utils._pytree import tree_map
from torchmetrics import Metric

from tests.metrics.test_metrics import each_metric, step
from tests.pretended import DEVICE, host


def fed(metric: Metric, device: object) -> Metric:
    metric = metric.clone().to(device)  # type: ignore[arg-type]
    metric.reset()
    metric.set_dtype(torch.float64)
    for seed in range(5):
        told = {name: value.to(device) for name, value in step(seed).items()}  # type: ignore[call-overload]
        metric.update(**metric._filter_kwargs(**told))
    return metric


@each_metric
def test_a_metric_is_that_of_the_cpu(metric: Metric) -> None:
    found = fed(metric, DEVICE).compute()
    expected = fed(metric, "cpu").compute()
    assert_close(_on_host(found), _on_host(expected))


@each_metric
def test_states_stay_on_the_device(metric: Metric) -> None:
    states = fed(metric, DEVICE).metric_state.values()
    tensors = [each for each in states if isinstance(each, torch.Tensor)]
    assert tensors
    assert {each.device for each in tensors} == {DEVICE}


def _on_host(value: object) -> object:
    return tree_map(lambda x: host(x) if isinstance(x, torch.Tensor) else x, value)
