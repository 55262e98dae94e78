"""Many forms of a scalar loss where all sizes agree: split by example, or refused, never wrong."""

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_jd.engines import jacobian, split_loss
from lightning_jd.errors import GraphError
from tests.helpers.rows import rows_by_autograd

N = 6  # examples, units, classes and outputs: no size tells one from the other
GENERATOR = torch.Generator().manual_seed(7)
X = torch.randn(N, 5, generator=GENERATOR, dtype=torch.float64)
SEQUENCES = torch.randn(N, 3, 5, generator=GENERATOR, dtype=torch.float64)
T = torch.rand(N, N, generator=GENERATOR, dtype=torch.float64)
Y = torch.randint(0, N, (N,), generator=GENERATOR)
TOKENS = torch.randint(0, N, (N, 3), generator=GENERATOR)
WEIGHTS = torch.rand(N, generator=GENERATOR, dtype=torch.float64)
MASK = T > 0.4
SOME = torch.tensor([True, False, True, True, False, True])
EYE = torch.eye(N, dtype=torch.float64)
OFF = EYE == 0


class Net(nn.Module):
    """Two layers, a table, and parameters with as many rows as the batch has examples."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(11)
        self.one, self.two = nn.Linear(5, N), nn.Linear(N, N)
        self.table = nn.Embedding(N, N)
        self.latent = nn.Parameter(torch.randn(N, N, generator=generator))
        self.double()

    def forward(self, x: Tensor = X) -> Tensor:
        return self.two(self.one(x).tanh())


def entropies(o: Tensor) -> Tensor:
    return F.cross_entropy(o, Y, reduction="none")


def squares(o: Tensor) -> Tensor:
    return (o - T).square()


def token_entropies(net: Net) -> Tensor:
    """Shape (N, 3)."""
    out = net(SEQUENCES)
    return F.cross_entropy(out.transpose(1, 2), TOKENS, reduction="none")


def flat_entropies(net: Net) -> Tensor:
    """Shape (3 N,)."""
    return F.cross_entropy(net(SEQUENCES).view(-1, N), TOKENS.view(-1), reduction="none")


def steps(net: Net) -> list[Tensor]:
    """The log-probabilities of three actions in a row, shape (N, 1) each."""
    logs = [net(SEQUENCES[:, t]).log_softmax(dim=1) for t in range(3)]
    return [log.gather(1, TOKENS[:, t : t + 1]) for t, log in enumerate(logs)]


Form = Callable[[Net], Tensor]

#: Losses whose mean is the scalar; the first dimension is that of the examples.
MEANS: dict[str, Form] = {
    "mean": lambda n: entropies(n()),
    "hinge": lambda n: F.relu(1 - n() * T),
    "masked fill": lambda n: squares(n()).masked_fill(MASK, 0.0),
    "weights of examples": lambda n: entropies(n()) * WEIGHTS,
    "focal": lambda n: (1 - (-entropies(n())).exp()) ** 2 * entropies(n()),
    "cumulated": lambda n: n().cumsum(1),
    "log-sum-exp": lambda n: n().logsumexp(1),
    "norms": lambda n: n().norm(dim=1),
    "largest": lambda n: n().amax(dim=1),
    "where": lambda n: torch.where(MASK, squares(n()), 2 * squares(n())),
    "tokens": token_entropies,
    "rows of a table": lambda n: squares(n.table(Y)),
    "rows of an indexed table": lambda n: (n.latent[Y] * n()).exp(),
    "a parameter that examples share": lambda n: (n() * n.latent[:1]).exp(),
    "batch norm": lambda n: F.batch_norm(n(), None, None, training=True).square(),
    "sequences by heads": lambda n: (
        n(SEQUENCES).view(N, 3, 2, 3).transpose(1, 2).softmax(3).square()
    ),
}
#: A scalar, and the losses of the examples that its rows must be proportional to.
RIGHT: dict[str, tuple[Form, Form]] = {
    "cross entropy": (lambda n: F.cross_entropy(n(), Y), lambda n: entropies(n())),
    "class weights": (
        lambda n: F.cross_entropy(n(), Y, WEIGHTS),
        lambda n: F.cross_entropy(n(), Y, WEIGHTS, reduction="none"),
    ),
    "mse, sum": (lambda n: F.mse_loss(n(), T, reduction="sum"), lambda n: squares(n()).sum(1)),
    "bce": (
        lambda n: F.binary_cross_entropy(n().sigmoid(), T),
        lambda n: F.binary_cross_entropy(n().sigmoid(), T, reduction="none").mean(1),
    ),
    "poisson": (
        lambda n: F.poisson_nll_loss(n(), T),
        lambda n: F.poisson_nll_loss(n(), T, reduction="none").mean(1),
    ),
    "cosine": (
        lambda n: 1 - F.cosine_similarity(n(), T).mean(),
        lambda n: -F.cosine_similarity(n(), T),
    ),
    "triplet": (
        lambda n: F.triplet_margin_loss(n(), T, T.flip(0)),
        lambda n: F.triplet_margin_loss(n(), T, T.flip(0), reduction="none"),
    ),
    "masked": (
        lambda n: (squares(n()) * MASK).sum() / MASK.sum(),
        lambda n: (squares(n()) * MASK).sum(1),
    ),
    "chosen": (lambda n: entropies(n())[SOME].mean(), lambda n: entropies(n()) * SOME),
    "chosen entries": (
        lambda n: squares(n())[MASK].mean(),
        lambda n: (squares(n()) * MASK).sum(1),
    ),
    "a scalar where": (
        lambda n: torch.where(WEIGHTS.sum() > 0, entropies(n()).mean(), torch.zeros(()).double()),
        lambda n: entropies(n()),
    ),
    "nan to num": (
        lambda n: torch.nan_to_num(entropies(n()).sum() / N),
        lambda n: entropies(n()),
    ),
    "flat tokens": (lambda n: flat_entropies(n).mean(), lambda n: token_entropies(n).mean(1)),
    "flat tokens, reduced by torch": (
        lambda n: F.cross_entropy(n(SEQUENCES).view(-1, N), TOKENS.view(-1)),
        lambda n: token_entropies(n).mean(1),
    ),
    "flat tokens, reshaped": (
        lambda n: flat_entropies(n).view(N, 3).mean(),
        lambda n: token_entropies(n).mean(1),
    ),
    "flat tokens, summed": (
        lambda n: flat_entropies(n).view(N, 3).sum(1).mean(),
        lambda n: token_entropies(n).sum(1),
    ),
    "tokens and sentences": (
        lambda n: (
            F.cross_entropy(n(SEQUENCES).view(-1, N), TOKENS.view(-1)) + entropies(n()).mean()
        ),
        lambda n: token_entropies(n).mean(1) + entropies(n()),
    ),
    "steps, joined": (
        lambda n: -(torch.cat(steps(n), 1).sum(1) * WEIGHTS).mean(),
        lambda n: -torch.cat(steps(n), 1).sum(1) * WEIGHTS,
    ),
    "steps, added": (
        lambda n: -(sum(steps(n)[1:], steps(n)[0]).squeeze(1) * WEIGHTS).mean(),
        lambda n: -torch.cat(steps(n), 1).sum(1) * WEIGHTS,
    ),
    "steps, stacked": (
        lambda n: -(torch.stack(steps(n), 2).sum(2).squeeze(1) * WEIGHTS).mean(),
        lambda n: -torch.cat(steps(n), 1).sum(1) * WEIGHTS,
    ),
    "two losses": (
        lambda n: entropies(n()).mean() + 0.1 * F.mse_loss(n(), T),
        lambda n: entropies(n()) + 0.1 * squares(n()).mean(1),
    ),
    "over the batch, then over outputs": (
        lambda n: squares(n()).mean(0).sum(),
        lambda n: squares(n()).sum(1),
    ),
    "contrast": (
        lambda n: F.cross_entropy(n() @ n().T, torch.arange(N)),
        lambda n: F.cross_entropy(n() @ n().T, torch.arange(N), reduction="none"),
    ),
}


def orthogonal(n: Net) -> Tensor:
    return n.two.weight @ n.two.weight.T - EYE


def covariance(o: Tensor) -> Tensor:
    centred = o - o.mean(0)
    return centred.T @ centred / N


#: No sum over examples.
REFUSED: dict[str, Form] = {
    "squares of a weight": lambda n: n.two.weight.square().sum(),
    "exp of a weight": lambda n: n.two.weight.exp().sum(),
    "softplus of a weight": lambda n: F.softplus(n.two.weight).pow(2).mean(),
    "tanh of a weight": lambda n: n.two.weight.tanh().abs().mean(),
    "log of a weight": lambda n: n.two.weight.square().add(1).log().sum(),
    "a smooth norm": lambda n: (n.two.weight.square() + 1e-3).sqrt().sum(),
    "lasso of groups": lambda n: n.two.weight.norm(dim=1).sum(),
    "lasso of columns": lambda n: n.two.weight.norm(dim=0).sum(),
    "entropy of a weight": lambda n: n.two.weight.softmax(1).square().sum(),
    "distance from a start": lambda n: (n.two.weight - T).exp().mean(),
    "a masked weight": lambda n: (n.two.weight * MASK).exp().mean(),
    "noise on a weight": lambda n: (n.two.weight + T * F.softplus(n.latent)).square().mean(),
    "orthogonality": lambda n: orthogonal(n).pow(2).sum(),
    "orthogonality, off the diagonal": lambda n: orthogonal(n)[OFF].pow(2).sum(),
    "a product of two weights": lambda n: (n.two.weight @ n.one.weight).square().mean(),
    "a slice of a weight": lambda n: n.two.weight[:4].exp().mean(),
    "a transposed weight": lambda n: n.two.weight.T.exp().mean(),
    "a reshaped weight": lambda n: n.two.weight.view(N, 2, 3).exp().mean(),
    "a bias": lambda n: n.two.bias.exp().mean(),
    "a table": lambda n: n.table.weight.exp().mean(),
    "norms of a table": lambda n: n.table.weight.norm(dim=1).mean(),
    "weights in a list": lambda n: torch.stack([n.one.bias, n.two.bias]).exp().mean(),
    "all weights in one": lambda n: torch.cat([n.two.weight, n.latent]).exp().mean(),
    "latents of all examples": lambda n: squares(n.two(n.latent)).mean(),
    "variance (VICReg)": lambda n: (1 - n().std(0)).relu().mean(),
    "variance by hand": lambda n: (n() - n().mean(0)).square().mean(0).sqrt().sum(),
    "covariance (Barlow)": lambda n: (n().T @ n() / N - EYE).pow(2).sum(),
    "covariance, off the diagonal": lambda n: covariance(n())[OFF].pow(2).sum(),
    "decorrelation": lambda n: (covariance(n()) * OFF).abs().mean(),
    "mean prediction": lambda n: (n().softmax(1).mean(0) - 0.2).pow(2).sum(),
    "entropy of the mean prediction": lambda n: (
        n().softmax(1).mean(0) * n().softmax(1).mean(0).log()
    ).sum(),
    "largest of the batch": lambda n: n().amax(0).exp().sum(),
    "norms of units": lambda n: n().norm(dim=0).mean(),
    "units as examples": lambda n: (n().T - T).square().mean(),
    "softmax over the batch": lambda n: n().softmax(0).mean(0).square().sum(),
    "sorted over the batch": lambda n: (n().sort(0).values.T - T).square().mean(),
    "a ratio": lambda n: (n() * T).sum() / n().sum(),
    "dice": lambda n: 1 - 2 * (n().sigmoid() * T).sum() / (n().sigmoid() + T).sum(),
    "a deviation": lambda n: n().std(),
    "a norm": lambda n: n().norm(),
    "a log of a mean": lambda n: n().exp().mean().log(),
    "a largest loss": lambda n: entropies(n()).max(),
    "a regulariser for every example": lambda n: (entropies(n()) + n.two.weight.norm()).mean(),
}


@pytest.mark.parametrize("name", [*MEANS, *RIGHT])
def test_rows_are_those_of_the_examples(name: str) -> None:
    net = Net()
    if name in MEANS:
        each = MEANS[name](net)
        whole, losses = each.mean(), each.view(N, -1).mean(dim=1)
    else:
        whole, losses = (form(net) for form in RIGHT[name])
    J = jacobian(split_loss(whole, "instances"), net)
    expected = rows_by_autograd(losses, net)
    assert_close(J / J.norm(), expected / expected.norm(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_sum_over_examples_is_refused(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(GraphError, match="split into instances, but"):
            split_loss(REFUSED[name](Net()), "instances")


@pytest.mark.parametrize("name", REFUSED)
def test_nor_is_it_one_together_with_a_loss(name: str) -> None:
    net = Net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(GraphError, match="split into instances, but"):
            split_loss(entropies(net()).mean() + 0.1 * REFUSED[name](net), "instances")


def test_a_list_along_dimension_0_is_named() -> None:
    net = Net()
    out = torch.stack([net() * t for t in range(1, 4)])
    with pytest.warns(UserWarning, match=r"3 slices along dimension 0 of .*\(3, 6, 6\)"):
        assert split_loss((out - T).square().mean(), "instances").m == 3
