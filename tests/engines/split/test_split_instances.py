"""A mean or sum over the batch: the rows are those of the same code with ``reduction="none"``."""

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_jd import backward
from lightning_jd.engines import jacobian, split_loss
from lightning_jd.errors import GraphError
from tests.helpers.rows import rows_by_autograd

B, C = 6, 4
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(B, 5, generator=GENERATOR, dtype=torch.float64)
Y = torch.randint(0, C, (B,), generator=GENERATOR)
IGNORED = torch.where(torch.arange(B) == 2, -100, Y)
T = torch.rand(B, C, generator=GENERATOR, dtype=torch.float64)
CLASSES = torch.rand(C, generator=GENERATOR, dtype=torch.float64)
MASK, ONES = (T > 0.4).double(), (T[:, 0] > 0.3).double()
LABELS = torch.tensor([[1, 2], [2, 3], [1, 1]])

Losses = Callable[[Tensor], Tensor]


def per_example(losses: Tensor) -> Tensor:
    return losses.flatten(1).mean(dim=1) if losses.ndim > 1 else losses


def summed(losses: Tensor) -> Tensor:
    return losses.flatten(1).sum(dim=1) if losses.ndim > 1 else losses


def ctc(out: Tensor, reduction: str) -> Tensor:
    log_probabilities = out.reshape(B, 1, C).expand(B, 3, C).log_softmax(2)
    lengths = torch.full((3,), B), torch.full((3,), 2)
    losses = F.ctc_loss(log_probabilities, LABELS, *lengths, reduction=reduction)
    return 2 * losses if reduction == "mean" else losses  # the mean divides by the lengths


#: Losses of torch with every reduction.
LOSSES: dict[str, Callable[[Tensor, str], Tensor]] = {
    "cross entropy": lambda o, r: F.cross_entropy(o, Y, reduction=r),
    "class weights": lambda o, r: F.cross_entropy(o, Y, CLASSES, reduction=r),
    "ignored labels": lambda o, r: F.cross_entropy(o, IGNORED, reduction=r),
    "smoothed": lambda o, r: F.cross_entropy(o, Y, reduction=r, label_smoothing=0.1),
    "smoothed, weights": lambda o, r: F.cross_entropy(
        o, Y, CLASSES, reduction=r, label_smoothing=0.1
    ),
    "probabilities": lambda o, r: F.cross_entropy(o, T.softmax(1), reduction=r),
    "nll": lambda o, r: F.nll_loss(o.log_softmax(1), Y, reduction=r),
    "pixels": lambda o, r: F.cross_entropy(
        o.view(3, 2, C).permute(0, 2, 1), Y.view(3, 2), reduction=r
    ),
    "mse": lambda o, r: F.mse_loss(o, T, reduction=r),
    "l1": lambda o, r: F.l1_loss(o, T, reduction=r),
    "huber": lambda o, r: F.huber_loss(o, T, reduction=r, delta=0.3),
    "smooth l1": lambda o, r: F.smooth_l1_loss(o, T, reduction=r),
    "bce": lambda o, r: F.binary_cross_entropy(o.sigmoid(), T, CLASSES, reduction=r),
    "bce with logits": lambda o, r: F.binary_cross_entropy_with_logits(
        o, T, CLASSES, reduction=r, pos_weight=CLASSES
    ),
    "kl": lambda o, r: F.kl_div(o.log_softmax(1), T.softmax(1), reduction=r),
    "kl of logs": lambda o, r: F.kl_div(
        o.log_softmax(1), T.log_softmax(1), reduction=r, log_target=True
    ),
    "gaussian nll": lambda o, r: F.gaussian_nll_loss(o, T, (0.3 * o).exp(), reduction=r),
    "soft margin": lambda o, r: F.soft_margin_loss(o, T.sign(), reduction=r),
    "multi margin": lambda o, r: F.multi_margin_loss(o, Y, reduction=r),
    "ctc": ctc,
}


def squares(out: Tensor) -> Tensor:
    return (out - T).square()


def entropies(out: Tensor) -> Tensor:
    return F.cross_entropy(out, Y, reduction="none")


def quantile(out: Tensor, i: int) -> Tensor:
    error = T[:, 0] - out[..., i]
    return torch.max(0.2 * (i - C) * error, 0.2 * i * error)


#: Sums and means by hand, and the vector that they are those of; more are in `test_split_forms.py`.
BY_HAND: dict[str, tuple[Losses, Losses]] = {
    "sum over the batch size": (lambda o: entropies(o).sum() / B, entropies),
    "factors after it": (
        lambda o: 0.3 * entropies(o).mean() / 2 + 1,
        lambda o: 0.15 * entropies(o),
    ),
    "a mean and a sum keep their proportion": (
        lambda o: entropies(o).mean() + 0.1 * squares(o).sum(),
        lambda o: entropies(o) + 0.1 * B * squares(o).sum(dim=1),
    ),
    "sum, then mean": (
        lambda o: squares(o).sum(dim=1).mean(),
        lambda o: squares(o).sum(dim=1),
    ),
    "root of each": (
        lambda o: squares(o).mean(dim=1).sqrt().mean(),
        lambda o: squares(o).mean(dim=1).sqrt(),
    ),
    "gathered": (lambda o: -o.log_softmax(1).gather(1, Y[:, None]).mean(), entropies),
    "one-hot": (
        lambda o: -(o.log_softmax(1) * F.one_hot(Y, C)).sum(dim=1).mean(),
        entropies,
    ),
    "quantiles, joined": (
        lambda o: torch.cat([quantile(o, i).unsqueeze(1) for i in range(C)], dim=1).mean(),
        lambda o: torch.stack([quantile(o, i) for i in range(C)], dim=1).mean(dim=1),
    ),
    "stacked along a new dimension": (
        lambda o: torch.stack([squares(o), squares(o).sqrt()], dim=2).sum(dim=2).mean(),
        lambda o: (squares(o) + squares(o).sqrt()).mean(dim=1),
    ),
    "tokens of sequences": (
        lambda o: F.cross_entropy(o.view(3, 2, C).view(-1, C), Y),
        lambda o: entropies(o).view(3, 2).mean(dim=1),
    ),
    "a sum and a mean": (
        lambda o: squares(o).sum() + 10 * entropies(o).mean(),
        lambda o: B * squares(o).sum(dim=1) + 10 * entropies(o),
    ),
    "two means of different counts keep their proportion": (
        lambda o: entropies(o).mean() + (entropies(o) * ONES).sum() / ONES.sum(),
        lambda o: entropies(o) + entropies(o) * ONES * B / ONES.sum(),
    ),
    "two sums": (
        lambda o: entropies(o).sum() + squares(o).sum(),
        lambda o: entropies(o) + squares(o).sum(dim=1),
    ),
    "the mean of a layer": (lambda o: -o.mean(), lambda o: -o.mean(dim=1)),
    "the mean of a slice of a layer": (lambda o: o[:, 1].mean(), lambda o: o[:, 1]),
    "flattened": (
        lambda o: F.mse_loss(o.reshape(-1), T.reshape(-1)),
        lambda o: squares(o).mean(dim=1),
    ),
}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, C)).double()


def assert_same_rows(model: nn.Module, loss: Tensor, losses: Tensor) -> None:
    split = split_loss(loss, "instances")
    assert split.kind == "instances"
    J = rows_by_autograd(losses, model)
    assert_close(jacobian(split, model), J, rtol=1e-9, atol=1e-12)
    assert_close(split.shown(), loss.detach())


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_torch(name: str, reduction: str) -> None:
    model = network()
    out = model(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the mean of the divergence
        loss, losses = LOSSES[name](out, reduction), LOSSES[name](out, "none")
    assert_same_rows(model, loss, per_example(losses) if reduction == "mean" else summed(losses))


@pytest.mark.parametrize("name", BY_HAND)
def test_sums_and_means_by_hand(name: str) -> None:
    model = network()
    out = model(X)
    whole, vector = BY_HAND[name]
    assert_same_rows(model, whole(out), vector(out))


@pytest.mark.parametrize("name", [*LOSSES, *BY_HAND])
def test_it_costs_what_the_vector_costs(name: str) -> None:
    """One pass for all instances: no parameter is slow that is not slow for the vector."""
    model = network()
    out = model(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name in LOSSES:
            loss, losses = LOSSES[name](out, "mean"), per_example(LOSSES[name](out, "none"))
        else:
            loss, losses = (function(out) for function in BY_HAND[name])
    expected = backward(losses, model, "upgrad", retain_graph=True).slow
    assert backward(loss, model, "upgrad", split="instances").slow.keys() <= expected.keys()


NOT_SEPARABLE: dict[str, tuple[Losses, str]] = {
    "a ratio": (lambda o: 1 - (o * T).sum() / o.sum(), "Div is no sum, mean or loss over a batch"),
    "a deviation": (lambda o: o.std(), "Std is no sum, mean or loss over a batch"),
    "a nonlinear function of means": (
        lambda o: squares(o).mean(dim=0).square().sum(),
        "each belongs to a part of a parameter",
    ),
    "an operation that keeps nothing": (
        lambda o: o.cumsum(dim=0).mean(),
        r"Cumsum with shape \(6, 4\) cannot be told apart",
    ),
    "parts of different lengths": (
        lambda o: F.mse_loss(o, T) + F.mse_loss(o[:3], T[:3]),
        r"its parts have \[3, 6\] examples",
    ),
}


@pytest.mark.parametrize("name", NOT_SEPARABLE)
def test_what_cannot_be_split_is_drawn(name: str) -> None:
    loss, reason = NOT_SEPARABLE[name]
    with pytest.raises(GraphError, match=reason) as caught:
        split_loss(loss(network()(X)), "instances")
    assert "Its graph ends with\n" in str(caught.value)
    assert "Return one loss per example instead" in str(caught.value)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(6, 5), (6, 2, 5)])
def test_a_critic(bias: bool, shape: tuple[int, ...]) -> None:
    critic = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 1, bias=bias)).double()
    scores = critic(torch.randn(shape, dtype=torch.float64)).squeeze(-1)
    assert_same_rows(critic, scores.mean(), per_example(scores))


def test_a_parameter_belongs_to_no_example() -> None:
    model = network()
    loss = F.mse_loss(model(X), T) + 0.1 * model[0].weight.square().sum()
    with pytest.raises(GraphError, match="a parameter is part of it, which belongs to no example"):
        split_loss(loss, "instances")
    assert split_loss(loss, "auto").names == ("mse_loss", "sum")  # but a term it is


def test_auto_takes_terms_if_there_are_several() -> None:
    out = network()(X)
    loss = LOSSES["cross entropy"](out, "mean")
    assert split_loss(loss, "auto").kind == "instances"
    assert split_loss(loss + out.norm(), "auto").kind == "tasks"
    assert split_loss(LOSSES["smoothed"](out, "mean"), "auto").kind == "instances"
    with pytest.raises(GraphError, match="Nor has it several terms"):
        split_loss(out.norm(), "auto")
