"""The scalar whose backward pass delivers known gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_jd.aggregators import Mean, Sum
from lightning_jd.core import Rows, collect, compute_update, surrogate
from lightning_jd.engines import Objectives, Select, named_parameters_of
from lightning_jd.errors import GraphError, NonFiniteError


def test_the_value_is_kept_and_the_gradient_follows_the_factor() -> None:
    x = torch.zeros(2, requires_grad=True)
    loss = surrogate(torch.tensor(5.0), [x], [torch.tensor([1.0, 2.0])])
    assert loss.item() == 5
    (loss / 4).backward()
    assert_close(x.grad, torch.tensor([0.25, 0.5]))


def test_the_tensors_are_taken_over_instead_of_copied() -> None:
    x = torch.zeros(2, requires_grad=True)
    gradients = [torch.tensor([1.0, 2.0])]
    address = gradients[0].data_ptr()
    surrogate(torch.tensor(5.0), [x], gradients).backward()
    assert x.grad.data_ptr() == address
    assert gradients == []


def test_strided_gradients_are_scaled_without_being_changed() -> None:
    x, shared = torch.zeros(2, 3, requires_grad=True), torch.ones(1, 3).expand(2, 3)
    (3 * surrogate(torch.tensor(0.0), [x], [shared])).backward()
    assert_close(x.grad, torch.full((2, 3), 3.0))


def test_one_tensor_as_the_gradient_of_two_parameters_is_scaled_once() -> None:
    x, y, z = (torch.zeros(2, requires_grad=True) for _ in "xyz")
    shared = torch.tensor([1.0, 2.0])
    gradients = [shared, shared.view(2), torch.ones(2)]
    (3 * surrogate(torch.tensor(0.0), [x, y, z], gradients)).backward()
    assert_close(
        [x.grad, y.grad, z.grad], [3 * torch.tensor([1.0, 2.0])] * 2 + [torch.full((2,), 3.0)]
    )


@pytest.mark.parametrize("select", ["all", "shared"])
def test_terms_of_a_sum_get_the_scaled_gradient_that_autograd_gives_them(select: Select) -> None:
    torch.manual_seed(0)
    trunk, first, second = (torch.randn(3, requires_grad=True) for _ in range(3))
    losses = [(trunk.exp() + first + second).sin().sum(), trunk.square().sum()]
    params = [trunk, first, second]
    expected = torch.autograd.grad(8 * sum(losses), params, retain_graph=True)
    rows = collect(named_parameters_of(params), select=select, keeps=False)
    rows.add(Objectives.of(losses))
    (8 * compute_update(rows, Sum()).surrogate()).backward()
    assert_close([tensor.grad for tensor in params], list(expected))


def test_sparse_gradients_are_scaled() -> None:
    table = torch.zeros(3, 2, requires_grad=True)
    sparse = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]).to_sparse(1)
    (3 * surrogate(torch.tensor(0.0), [table], [sparse])).backward()
    assert table.grad is not None
    assert_close(table.grad.to_dense(), torch.tensor([[0.0, 0.0], [3.0, 3.0], [0.0, 0.0]]))


def test_a_second_backward_pass_is_refused() -> None:
    x = torch.zeros(2, requires_grad=True)
    loss = surrogate(torch.tensor(5.0), [x], [torch.ones(2)])
    loss.backward(retain_graph=True)
    with pytest.raises(GraphError, match=r"can run only once\. Compute the losses again"):
        loss.backward()


def rows_of(
    losses: Tensor, params: nn.Module | list[Tensor], select: Select = "all", **add: Any
) -> Rows:
    rows = collect(named_parameters_of(params), select=select, keeps=False)
    rows.add(Objectives.of(losses), **add)
    return rows


def test_an_update_shows_the_mean_loss_and_leaves_grad_alone() -> None:
    layer = nn.Linear(2, 1)
    losses = layer(torch.randn(4, 2)).square().squeeze(1)
    update = compute_update(rows_of(losses, layer), Mean())
    assert layer.weight.grad is None
    scalar = update.surrogate()
    assert_close(scalar.detach(), losses.mean().detach())
    (2 * scalar).backward()
    assert layer.weight.grad is not None


def test_a_scale_is_taken_out_again() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(3, 2), torch.randn(4, 3)
    found = []
    for scale in (1.0, 1024.0, torch.tensor(1024.0)):
        rows = rows_of(layer(x).square().mean(1), layer, "weight", scale=scale)
        update = compute_update(rows, Mean())
        found.append([update.report.gramian, *update.gradients])
    assert_close(found[1], found[0])
    assert_close(found[2], found[0])


def test_an_overflow_can_be_left_to_the_scaler() -> None:
    x = torch.tensor([1.0, 0.0], requires_grad=True)
    with pytest.raises(NonFiniteError, match="Gradients must be finite"):
        compute_update(rows_of(x.sqrt(), [x]), Mean())
    update = compute_update(rows_of(x.sqrt(), [x]), Mean(), overflow="mean")
    assert update.report.weights.tolist() == [0.5, 0.5]
    assert not update.gradients[0].isfinite().all()
