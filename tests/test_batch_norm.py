"""BatchNorm is replaced by GroupNorm or takes constants, and instances cost one pass again."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lightning_jd import backward, explain
from lightning_jd.doctor import frozen_batch_norm, replace_batch_norm
from lightning_jd.errors import ArgumentError
from tests.helpers.rows import flat_gradient, rows_by_autograd


class Block(nn.Module):
    """A norm under an attribute, and one that is used in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)
        self.bn = nn.BatchNorm2d(16, eps=1e-3)
        shared = nn.BatchNorm1d(4)
        self.tail = nn.Sequential(nn.Flatten(), nn.Linear(16 * 36, 4), shared)
        self.again = shared

    def forward(self, x: Tensor) -> Tensor:
        return self.again(self.tail(self.bn(self.conv(x)).relu()))


@pytest.mark.parametrize(
    ("layer", "groups"),
    [
        (nn.BatchNorm1d(64), 1),  # there may be nothing but channels to average over
        (nn.BatchNorm2d(64), 8),
        (nn.BatchNorm2d(512), 32),
        (nn.BatchNorm2d(24), 3),
        (nn.BatchNorm2d(3), 1),
        (nn.BatchNorm2d(17), 1),
        (nn.BatchNorm3d(40), 5),
        (nn.SyncBatchNorm(64), 8),
    ],
    ids=str,
)
def test_every_kind_has_a_sensible_number_of_groups(layer: Any, groups: int) -> None:
    channels = layer.num_features
    model = nn.Sequential(layer)
    assert str(replace_batch_norm(model)).endswith(f"GroupNorm({groups}, {channels})")
    assert isinstance(model[0], nn.GroupNorm)
    shape = {"BatchNorm1d": (2, channels), "BatchNorm3d": (2, channels, 2, 2, 2)}
    x = torch.randn(shape.get(type(layer).__name__, (2, channels, 3, 3)))
    alone = torch.cat([model(x[:1]), model(x[1:])])
    torch.testing.assert_close(model(x), alone)  # no instance knows the others
    assert model(x).std() > 0.5  # and nothing is normalised away


def test_parameters_and_modes_are_kept() -> None:
    model = Block()
    with torch.no_grad():
        model.bn.weight.fill_(3.0)
    model.bn.bias.requires_grad_(False)
    model.again.eval()
    weight, frozen = model.bn.weight, model.bn.bias
    done = replace_batch_norm(model)
    assert list(done) == ["bn", "again", "tail.2"]
    assert model.bn.weight is weight
    assert model.bn.bias is frozen
    assert model.bn.eps == 1e-3
    assert model.again is model.tail[2]  # still one layer
    assert not model.again.training
    assert model.bn.training
    assert not any(isinstance(part, nn.BatchNorm2d | nn.BatchNorm1d) for part in model.modules())
    assert str(replace_batch_norm(model)) == "There is no BatchNorm in the model."


def test_the_warning_names_it_and_it_helps() -> None:
    model, x = Block(), torch.randn(5, 3, 8, 8)

    def losses() -> Tensor:
        return model(x).square().mean(dim=1)

    with pytest.warns(RuntimeWarning, match=r"One backward pass per instance.*replace_batch_norm"):
        report = backward(losses(), model, "upgrad")
    assert report.slow["conv.weight"].passes == 5
    assert "replace_batch_norm" in str(explain(losses(), model))
    replace_batch_norm(model)
    assert backward(losses(), model, "upgrad").slow == {}


def fixed(model: nn.Module, x: Tensor, sizes: list[int]) -> nn.Module:
    """A copy in which the statistics of a batch, of so many numbers per channel, are fixed."""
    twin = copy.deepcopy(model)
    norms = [layer for layer in twin.modules() if isinstance(layer, _BatchNorm)]
    for layer in norms:
        layer.momentum = 1.0
    twin(x)
    for layer, n in zip(norms, sizes, strict=True):
        assert layer.running_var is not None
        layer.running_var *= (n - 1) / n  # the one that the batch was divided by
    return twin.eval()


@pytest.mark.parametrize("affine", [True, False])
def test_frozen_statistics_are_constants(affine: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4, affine=affine),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(16, 5),
        nn.BatchNorm1d(5, momentum=None, track_running_stats=affine),
    ).double()
    x = torch.randn(6, 3, 4, 4, dtype=torch.float64)
    plain = copy.deepcopy(model)
    with frozen_batch_norm():
        outputs = model(x)
    torch.testing.assert_close(outputs, plain(x))  # and so are running statistics:
    for ours, theirs in zip(model.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)
    if not affine:
        return  # without statistics of its own, there is no model with fixed ones
    twin = fixed(model, x, [24, 6])
    losses = twin(x).square().mean(dim=1)
    report = backward(outputs.square().mean(dim=1), model, "mean")
    assert report.slow == {}
    J = rows_by_autograd(losses, twin)
    torch.testing.assert_close(report.gramian, J @ J.T)
    torch.testing.assert_close(flat_gradient(model), J.mean(dim=0))


def test_what_is_frozen_is_restored() -> None:
    before = nn.functional.batch_norm
    with pytest.raises(ValueError, match="more than 1 value"), frozen_batch_norm():  # torch's own
        nn.BatchNorm1d(3)(torch.randn(1, 3))
    assert nn.functional.batch_norm is before
    layer = nn.BatchNorm1d(3).eval()
    x = torch.randn(4, 3)
    with frozen_batch_norm():
        assert torch.equal(layer(x), layer(x))
        assert int(layer.num_batches_tracked or 0) == 0


@pytest.mark.parametrize(
    ("model", "groups", "message"),
    [
        (nn.BatchNorm2d(3), 32, "must contain the layers to replace, got BatchNorm2d itself"),
        (nn.Sequential(nn.LazyBatchNorm2d()), 32, "but 0 is lazy"),
        (nn.Sequential(), 0, "`groups` must be a positive integer, got 0"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
def test_what_cannot_be_replaced(model: nn.Module, groups: int, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        replace_batch_norm(model, groups)
