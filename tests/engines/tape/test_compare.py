"""A wrong rule is found by the certificate, named, and replaced by rows that are right."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_jd import backward
from lightning_jd.aggregators import Constant
from lightning_jd.engines import Objectives, Tape, gramian, holds_hooks
from lightning_jd.engines.tape import Rows, Site, _compare, _step, register_rule, unregister_rule
from lightning_jd.engines.tape._compare import mismatches, random_vector
from lightning_jd.engines.tape.graph import Placement
from lightning_jd.engines.tape.run import Ledger
from lightning_jd.errors import ArgumentError, GraphError
from tests.engines.oracle import assert_gradients, assert_gramian, jacobian_blocks

NAME = "DivBackward0"  # an operation that no rule of the package covers


@pytest.fixture(autouse=True)
def the_same_vector() -> None:
    """Whether a small error shows depends on the random vector; here it is always the same one.

    Hooks that were registered before, by other tests, are not in the graphs of this one.
    """
    _compare._RANDOM.manual_seed(0)
    holds_hooks(Objectives.of(torch.ones(2, requires_grad=True).exp()))


class Divided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.divisor = nn.Parameter(torch.rand(3, dtype=torch.float64) + 1)
        self.head = nn.Linear(3, 2, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x / self.divisor).square().sum(dim=1)


def derivative(site: Site, factor: float) -> Rows:
    """Of ``x / p`` by p, times a factor that is 1 in a right rule."""
    pulled = -site.cotangent * site.saved("self") / site.saved("other") ** 2
    return Rows(factor * site.owners.split_cotangent(pulled).sum(dim=1), site.placements[0])


@pytest.fixture
def wrong_rule() -> Iterator[None]:
    register_rule(NAME, 1)(lambda site: derivative(site, 1.001))
    yield
    unregister_rule(NAME, 1)


@pytest.fixture
def right_rule() -> Iterator[None]:
    register_rule(NAME, 1)(lambda site: derivative(site, 1.0))
    yield
    unregister_rule(NAME, 1)


def named(model: nn.Module) -> list[tuple[str, Tensor]]:
    return list(model.named_parameters())


def losses_of(model: Divided) -> Tensor:
    return model(torch.randn(5, 3, dtype=torch.float64))


@pytest.mark.usefixtures("wrong_rule")
@pytest.mark.parametrize("memory", ["fast", "low"])
def test_a_wrong_rule_is_named_and_replaced_by_rows(memory: str) -> None:
    model = Divided()
    losses = losses_of(model)
    blocks = jacobian_blocks(losses, named(model))
    tape = Tape(Objectives.of(losses), named(model), memory=memory)
    with pytest.warns(RuntimeWarning, match=r"mismatch for 'divisor' \(\w+, relative error"):
        G = tape.gramian()
    assert_gramian(G, blocks, 1e-10)
    weights = torch.rand(5, dtype=torch.float64)
    assert_gradients(tape.gradients(weights), weights, blocks, named(model), 1e-10)
    assert tape.paths["divisor"] == "rows"
    assert tape.paths["head.weight"].startswith("rule")  # only what failed gets slower


@pytest.mark.usefixtures("wrong_rule")
def test_the_next_step_remembers_without_a_warning() -> None:
    model = Divided()
    with pytest.warns(RuntimeWarning, match="mismatch"):
        Tape(Objectives.of(losses_of(model)), named(model)).gramian()
    losses = losses_of(model)
    tape = Tape(Objectives.of(losses), named(model))
    assert_gramian(tape.gramian(), jacobian_blocks(losses, named(model)), 1e-10)


@pytest.mark.usefixtures("wrong_rule")
def test_a_mismatch_can_raise() -> None:
    model = Divided()
    tape = Tape(Objectives.of(losses_of(model)), named(model), check="raise")
    with pytest.raises(GraphError, match=r"must agree with an ordinary backward pass.*'divisor'"):
        tape.gramian()


@pytest.mark.usefixtures("right_rule")
def test_a_right_rule_passes_and_is_used() -> None:
    model = Divided()
    losses = losses_of(model)
    tape = Tape(Objectives.of(losses), named(model), check="raise")
    assert_gramian(tape.gramian(), jacobian_blocks(losses, named(model)), 1e-10)
    assert tape.paths["divisor"] == f"rule {NAME}"


def test_without_a_rule_the_operation_is_differentiated_alone() -> None:
    model = Divided()
    losses = losses_of(model)
    tape = Tape(Objectives.of(losses), named(model))
    assert_gramian(tape.gramian(), jacobian_blocks(losses, named(model)), 1e-10)
    assert tape.paths["divisor"] != "rows"


def test_rounding_under_autocast_is_no_mismatch() -> None:
    # Parameters and losses are float32, but autograd sums the gradients of a bias in bfloat16.
    torch.manual_seed(0)
    for _ in range(200):
        model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            errors = (model(torch.randn(8, 4)) - torch.randn(8, 2)).square()
        Tape(Objectives.of([errors.mean()]), named(model), check="always").gramian()


def test_compares_do_not_touch_the_random_numbers_of_the_user() -> None:
    model = Divided()
    losses = losses_of(model)
    before = torch.get_rng_state()
    Tape(Objectives.of(losses), named(model), check="always").gramian()
    assert torch.equal(torch.get_rng_state(), before)


def test_an_unknown_check_is_refused() -> None:
    model = Divided()
    with pytest.raises(ArgumentError, match=r"`check` must be 'auto', .* got 'sometimes'"):
        Tape(Objectives.of(losses_of(model)), named(model), check="sometimes")  # type: ignore[arg-type]


@pytest.mark.parametrize(("every", "certified"), [(1, [0, 1, 2, 3, 4, 5]), (3, [0, 2, 5])])
def test_the_period_of_certificates_is_an_option(
    every: int, certified: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step, the first one with a program, and then every so many."""
    begun: list[Tensor] = []
    found: list[int] = []
    compare = _step.mismatches

    def counted(*args: Any, **kwargs: Any) -> Any:
        found.append(len(begun) - 1)
        return compare(*args, **kwargs)

    monkeypatch.setattr(_step, "mismatches", counted)
    model = Divided()
    for _ in range(6):
        begun.append(losses_of(model))
        backward(begun[-1], [model.head.weight], "mean", check_every=every)
    assert found == certified


def test_a_period_of_no_steps_is_refused() -> None:
    model = Divided()
    with pytest.raises(ArgumentError, match=r"`check_every` must be .* at least 1, got 0"):
        backward(losses_of(model), model, check_every=0)


def test_a_second_rule_for_the_same_input_is_refused() -> None:
    with pytest.raises(ArgumentError, match="without a rule, got 'MmBackward0', slot 1"):
        register_rule("MmBackward0", 1)(lambda site: derivative(site, 1.0))


class Wrong(nn.Module):
    """A weight whose gradient is forgotten, and one that is a little too long."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6, dtype=dtype)
        self.divisor = nn.Parameter(torch.rand(6, dtype=dtype) + 1)
        self.second = nn.Linear(6, 2, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)) / self.divisor)


@pytest.mark.parametrize("scale", [1e-15, 1e-5, 1.0, 1e6])
@pytest.mark.parametrize(
    ("dtype", "factor"),
    [
        *[(dtype, 0.0) for dtype in (torch.float64, torch.float32, torch.bfloat16)],
        # With memory="low" lengths are compared, not gradients: where v makes rows cancel, an error
        # must be larger to be seen.
        (torch.float64, 1 + 1e-6),
        (torch.float32, 1.01),
        (torch.bfloat16, 2.0),
    ],
    ids=str,
)
@pytest.mark.parametrize("memory", ["fast", "low"])
def test_the_compare_has_no_scale(
    memory: str, dtype: torch.dtype, factor: float, scale: float
) -> None:
    register_rule(NAME, 1)(lambda site: derivative(site, factor))
    try:
        torch.manual_seed(0)
        model = Wrong(dtype)
        errors = model(torch.randn(64, 6).to(dtype)).square().sum(dim=1)
        with pytest.warns(RuntimeWarning, match=r"mismatch for 'divisor' \("):
            Tape(Objectives.of(errors * scale), named(model), memory=memory).gramian()
    finally:
        unregister_rule(NAME, 1)


@pytest.mark.parametrize("scale", [1e-15, 1e-5, 1.0, 1e6])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_rounding_is_no_mismatch_at_any_scale(dtype: torch.dtype, scale: float) -> None:
    torch.manual_seed(0)
    for _ in range(25):
        model = Wrong(dtype)
        errors = model(torch.randn(64, 6).to(dtype)).square().sum(dim=1)
        Tape(Objectives.of(errors * scale), named(model), check="raise").gramian()


@pytest.mark.parametrize(
    ("dtype", "factor"), [(torch.float32, 1.003), (torch.bfloat16, 1.3)], ids=str
)
def test_replayed_gradients_show_smaller_errors(dtype: torch.dtype, factor: float) -> None:
    register_rule(NAME, 1)(lambda site: derivative(site, factor))
    try:
        torch.manual_seed(0)
        model = Wrong(dtype)

        def certify_three_times() -> None:  # a random combination of rows may happen to be short
            for _ in range(3):
                errors = model(torch.randn(64, 6).to(dtype)).square().sum(dim=1)
                Tape(Objectives.of(errors), named(model), check="always").gramian()

        with pytest.warns(RuntimeWarning, match=r"mismatch for 'divisor' \("):
            certify_three_times()
    finally:
        unregister_rule(NAME, 1)


def test_gradients_are_certified_also_for_a_gramian() -> None:
    """A hook on the transposed weight that keeps lengths is invisible in the Gramian."""
    weight = nn.Parameter(torch.randn(3, 4, dtype=torch.float64))
    x = torch.randn(5, 4, dtype=torch.float64)

    def losses() -> Tensor:
        transposed = weight.t()
        transposed.register_hook(lambda gradient: -gradient)
        return (x @ transposed).square().sum(dim=1)

    with pytest.warns(RuntimeWarning, match=r"mismatch for '0' \(gradient"):
        gramian(losses(), [weight])
    backward(losses(), [weight], Constant([1 / 5] * 5))
    found, weight.grad = weight.grad, None
    losses().mean().backward()
    torch.testing.assert_close(found, weight.grad)


def test_a_loss_that_is_left_out_may_be_nan_in_a_certified_step() -> None:
    """Zero times NaN is NaN in the ordinary passes, but not in the rows of the others."""
    model, x = nn.Linear(3, 1).double(), torch.randn(4, 3, dtype=torch.float64)
    targets = torch.tensor([1.0, torch.nan, 1.0, 1.0], dtype=torch.float64)
    for _ in range(2):
        losses = (model(x).squeeze(1) * targets)[torch.tensor([0, 2, 3])]
        tape = Tape(Objectives.of(losses), list(model.named_parameters()))
        J = torch.cat([x, torch.ones(4, 1, dtype=torch.float64)], dim=1)[[0, 2, 3]]
        assert_close(tape.gramian(), J @ J.T)


def test_a_row_of_rounding_errors_does_not_hide_those_of_the_others() -> None:
    """A certificate lets every row weigh about the same, so that small ones count as well."""
    numbers = torch.Generator().manual_seed(0)
    rows = torch.randn(5, 8, generator=numbers)
    rows[0] /= 128
    ledger = Ledger(5, torch.float32, torch.device("cpu"), room=rows.numel(), notes=True)
    ledger.add(Rows(rows, Placement(0, 8, (8,))))
    ledger.close()

    def ordinary(v: Tensor, _: Sequence[int], factor: float = 1.0) -> dict[int, Tensor]:
        digits = int(1e6 * torch.frexp(v[0]).mantissa.abs())  # powers of two round alike
        drawn = torch.randn(8, generator=torch.Generator().manual_seed(digits))
        noise = rows[0].norm() * drawn
        return {0: v[0] * (rows[0] + noise) + factor * (v[1:] @ rows[1:])}

    v = random_vector(ledger.G, spread=1e3)
    assert mismatches(ledger, v, ordinary, torch.bfloat16, {0}) == []
    found = mismatches(ledger, v, partial(ordinary, factor=3.0), torch.bfloat16, {0})
    assert found is not None
    assert [mismatch.parameters for mismatch in found] == [(0,)]


def test_a_parameter_without_a_contribution_is_compared() -> None:
    ledger = Ledger(2, torch.float64, torch.device("cpu"), room=8, notes=True)
    ledger.add(Rows(torch.eye(2, 4).double(), Placement(0, 4, (4,))))
    ledger.close()

    def ordinary(v: Tensor, chosen: Sequence[int]) -> dict[int, Tensor]:
        rows = {0: torch.eye(2, 4).double(), 1: torch.ones(2, 4).double()}
        return {p: v @ rows[p] for p in chosen}

    v = torch.tensor([1.0, -2.0], dtype=torch.float64)
    assert mismatches(ledger, v, ordinary, torch.float64, {0}) == []
    found = mismatches(ledger, v, ordinary, torch.float64, {0, 1})
    assert found is not None
    assert [mismatch.parameters for mismatch in found] == [(1,)]


def test_numbers_of_one_row_that_another_absorbs_are_no_mismatch() -> None:
    """The second row is zero, because large terms cancel, and the first is lost in these."""
    weight = nn.Parameter(torch.ones(3))
    for _ in range(3):
        total = weight.sum()
        large, small = 1e8 * total, total.sin()
        losses = torch.stack([small, large - 1e8 * total])
        lost = torch.autograd.grad(losses.sum(), weight, retain_graph=True)[0]
        assert not lost.any()
        Tape(Objectives.of(losses), [("weight", weight)], check="raise").gramian()
