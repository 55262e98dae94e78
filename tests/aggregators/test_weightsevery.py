"""Weights that are computed in every n-th step, and known in the others."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import lightning_jd
from lightning_jd.aggregators import MGDA, Balancer, GramianAggregator, Step, WeightsEvery
from lightning_jd.errors import ArgumentError
from tests.core.test_methods import losses, network
from tests.helpers.matrices import normal
from tests.helpers.rows import flat_gradient


def gramian(t: int, m: int = 3) -> Tensor:
    J = normal(t, m, 6)
    return J @ J.T


def ask(method: WeightsEvery, t: int, names: str = "abc") -> Tensor:
    step = Step(tuple(names), torch.ones(len(names)).double())
    current = method.turn()
    if isinstance(current, Balancer):
        return current.weigh(step)
    assert isinstance(current, GramianAggregator)
    return current.weigh(gramian(t, len(names)), step)


def test_weights_are_those_of_the_last_step_that_computed_them() -> None:
    method = WeightsEvery("mgda", n=3)
    for t in range(8):
        assert_close(ask(method, t), MGDA().weights(gramian(t - t % 3)))


def test_a_step_between_is_one_ordinary_backward_pass() -> None:
    model, method = network(), WeightsEvery("upgrad", n=3)
    first = lightning_jd.backward(losses(model, 0), model, method)
    assert first.known_gramian is not None
    model.zero_grad()
    second = lightning_jd.backward(losses(model, 1), model, method)
    assert second.known_gramian is None
    assert first.weights is not None
    assert second.weights is not None
    assert_close(second.weights, first.weights)
    found = flat_gradient(model)
    model.zero_grad()
    torch.stack(list(losses(model, 1).values())).backward(first.weights)
    assert_close(found, flat_gradient(model), rtol=1e-12, atol=1e-14)


def test_what_cannot_be_kept_is_refused() -> None:
    for spec in ("graddrop", "modo", "uw"):
        with pytest.raises(
            ArgumentError, match="`aggregator` must compute weights from one sample"
        ):
            WeightsEvery(spec)
    with pytest.raises(ArgumentError, match="`n` must be an integer of at least 1, got 0"):
        WeightsEvery(n=0)
    model = network()
    with pytest.raises(ArgumentError, match="with parameter groups, got group '0'"):
        lightning_jd.backward(losses(model), model, WeightsEvery(), groups="layer")
