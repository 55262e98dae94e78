"""Recorded steps: every graph of the zoo again and again, with other numbers in every step."""

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.testing import assert_close

from lightning_jd.engines import Objectives, Tape
from lightning_jd.engines.tape import Rows, Site, register_rule, unregister_rule
from lightning_jd.engines.tape.run import Replay
from lightning_jd.engines.tape.run._program import Program, UntraceableError
from tests.engines.oracle import TOLERANCE, check_tape, jacobian_blocks
from tests.engines.zoo import CASES, default_dtype

STEPS = 6  # asked, recorded, compared, and three more
#: The others are tasks, or rows one by one, or decide by the values of tensors.
REPLAYED_AT_LEAST = 20


def tape_of(losses: Tensor, module: nn.Module, **options: object) -> Tape:
    tape = Tape(Objectives.of(losses), list(module.named_parameters()), **options)  # type: ignore[arg-type]
    tape.gramian()
    return tape


def is_replayed(tape: Tape) -> bool:
    return tape._outcome is not None and isinstance(tape._outcome.ledger, Replay)


def assert_exact(tape: Tape, losses: Tensor) -> None:
    J = torch.cat([b for b in jacobian_blocks(losses, tape.named) if b is not None], dim=1)
    assert_close(tape.gramian(), J @ J.T)
    w = torch.linspace(-1, 2, len(J), dtype=J.dtype)
    found = torch.cat([g.flatten() for g in tape.gradients(w) if g is not None])
    assert_close(found, w @ J)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_step_is_exact_on(name: str) -> None:
    with default_dtype(torch.float64), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for step in range(4):
            torch.manual_seed(step)
            losses, named = CASES[name]()
            keep = step % 2 == 0
            check_tape(losses, named, "fast", TOLERANCE[torch.float64], retain_graph=keep)


@pytest.mark.slow
def test_most_of_the_zoo_is_replayed() -> None:
    replayed = 0
    for name in list(CASES)[::4]:
        for step in range(3):  # asked, recorded, replayed
            torch.manual_seed(step)
            losses, named = CASES[name]()
            tape = Tape(Objectives.of(losses), named, check="off")  # each model is new
            tape.gramian()
        replayed += is_replayed(tape)
    assert replayed >= REPLAYED_AT_LEAST, replayed


class Block(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 6, dtype=dtype), nn.LayerNorm(6, dtype=dtype)
        self.last = nn.Linear(6, 3, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        losses: Tensor = self.last(self.norm(self.first(x)).tanh()).square().flatten(1).sum(1)
        return losses


def replaying(model: nn.Module, make: Callable[[], Tensor]) -> Tape:
    """Steps until one is replayed."""
    for _ in range(STEPS):
        tape = tape_of(model(make()), model)
    assert is_replayed(tape)
    return tape


def inputs(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype)


def test_inputs_with_another_memory_order_are_recorded_anew() -> None:
    model = Block()
    replaying(model, lambda: inputs(4, 5, 6))
    for x in (inputs(4, 6, 5).transpose(1, 2), inputs(5, 4, 6).transpose(0, 1), inputs(4, 5, 6)):
        for _ in range(3):
            losses = model(x)
            assert_exact(tape_of(losses, model), losses)


def test_one_tensor_in_two_places_may_be_two_in_the_next_step() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 3).double(), nn.Linear(6, 3).double()

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            losses: Tensor = (self.a(x) * self.b(y)).sum(dim=1)
            return losses

    model, x = Pair(), inputs(4, 6)
    for _ in range(STEPS):
        tape = tape_of(model(x, x), model)
    assert is_replayed(tape)
    losses = model(x, inputs(4, 6))
    tape = tape_of(losses, model)
    assert is_replayed(tape)
    assert_exact(tape, losses)


def test_another_scale_precision_or_device_of_saved_tensors_is_another_program() -> None:
    model, x = Block(), inputs(4, 5, 6)
    replaying(model, lambda: x)
    losses = model(x)
    for scale in (1024.0, torch.tensor(2.0**-12, dtype=torch.float64)):
        for _ in range(4):
            tape = tape_of(losses, model, scale=scale)
            assert_exact(tape, losses)
        assert is_replayed(tape)
    with save_on_cpu():
        losses = model(x)
    tape = tape_of(losses, model)
    assert not is_replayed(tape)
    assert_exact(tape, losses)
    single = Block(torch.float32)
    losses = single(x.float())
    G = tape_of(losses, single).gramian()
    assert G.dtype == torch.float32


def test_arguments_of_operations_may_change_from_step_to_step() -> None:
    model = nn.Conv2d(2, 3, 3).double()
    x = inputs(4, 2, 12, 12)
    for step in range(3 * STEPS):
        model.dilation = (1 + step // STEPS % 2,) * 2
        model.padding = model.dilation  # results have the same shape
        losses = model(x).square().flatten(1).sum(1)
        assert_exact(tape_of(losses, model), losses)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor, p: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x, p)  # type: ignore[attr-defined]
        ctx.factor = factor  # type: ignore[attr-defined]
        return factor * x * p

    @staticmethod
    def backward(ctx: object, D: Tensor) -> tuple[Tensor | None, ...]:
        x, p = ctx.saved_tensors  # type: ignore[attr-defined]
        factor = ctx.factor  # type: ignore[attr-defined]
        return factor * D * p, (factor * D * x).sum(0), None


class Scaling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.rand(6, dtype=torch.float64))

    def forward(self, x: Tensor, factor: float) -> Tensor:
        losses: Tensor = Scaled.apply(x, self.p, factor).square().sum(dim=1)
        return losses


@pytest.fixture
def rule_that_looks_at_the_node() -> Iterator[None]:
    def rule(site: Site) -> Rows:
        node: object = site.node
        x, _ = node.saved_tensors  # type: ignore[attr-defined]
        return Rows(node.factor * site.cotangent * x, site.placements[0])  # type: ignore[attr-defined]

    register_rule("ScaledBackward", 1)(rule)
    yield
    unregister_rule("ScaledBackward", 1)


@pytest.mark.usefixtures("rule_that_looks_at_the_node")
def test_a_rule_that_looks_at_the_node_is_asked_in_every_step() -> None:
    model = Scaling()
    for step in range(8):
        losses = model(inputs(4, 6), 1.0 + step // 4)
        tape = tape_of(losses, model)
        assert not is_replayed(tape)
        assert_exact(tape, losses)


@pytest.fixture
def rule_with_a_mood() -> Iterator[list[float]]:
    mood = [1.0]

    def rule(site: Site) -> Tensor:
        return mood[0] * site.cotangent * site.saved("other")

    unregister_rule("MulBackward0", 0)
    register_rule("MulBackward0", 0, saved=("other",))(rule)
    yield mood
    unregister_rule("MulBackward0", 0)
    from lightning_jd.engines.tape.rules._broadcast import left_factor

    register_rule("MulBackward0", 0, saved=("other",))(left_factor)


def test_a_program_that_differs_from_its_rules_is_dropped_with_a_warning(
    rule_with_a_mood: list[float],
) -> None:
    """Right when it is recorded, and when it is asked; wrong when it is replayed."""

    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p = nn.Parameter(torch.rand(6, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            losses: Tensor = (self.p * x).exp().sum(dim=1)
            return losses

    model = Product()
    tape_of(model(inputs(4, 6)), model)
    rule_with_a_mood[0] = 2.0
    tape_of(model(inputs(4, 6)), model)  # recorded, wrong, and not certified
    rule_with_a_mood[0] = 1.0
    losses = model(inputs(4, 6))
    with pytest.warns(RuntimeWarning, match=r"A traced step must do what the rules do"):
        assert_exact(tape_of(losses, model), losses)
    for _ in range(3):
        losses = model(inputs(4, 6))
        tape = tape_of(losses, model)
        assert not is_replayed(tape)
        assert_exact(tape, losses)


@pytest.mark.parametrize(
    "name", ["linear", "linear_on_sequences", "conv2d_with_stride_dilation_and_groups"]
)
def test_a_program_rounds_as_its_rules_do(name: str) -> None:
    """So that a run that is resumed, and asks the rules first, goes on bit for bit."""
    found = []
    for _ in range(STEPS):
        torch.manual_seed(0)
        losses, named = CASES[name]()
        tape = Tape(Objectives.of(losses), named, check="off")  # each model is new
        weights = torch.linspace(-1, 2, len(tape.gramian()))
        found.append([tape.gramian(), *[g for g in tape.gradients(weights) if g is not None]])
    assert is_replayed(tape)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(other, found[0], strict=True))


def recorded(compute: Callable[[Tensor, Tensor], Tensor]) -> tuple[list[str], Tensor, Tensor]:
    """The names of the operations that are left of a computation, its result, and that of them."""
    torch.manual_seed(0)
    x, y, w = torch.randn(4, 3), torch.randn(3), torch.randn(4)
    program = Program(lambda given, weights: (compute(*given), []), [x, y], w)
    (replayed,) = program.assemble([x, y])
    calls = [node.name for node in program.early.graph.nodes if node.op == "call_function"]
    return calls, compute(x, y), replayed


@pytest.mark.parametrize(
    ("compute", "calls"),
    [
        (lambda x, w: (x.view(2, 6).view(4, 3) * w) + (x.view(2, 6).view(4, 3) + w), 3),
        (lambda x, w: x[1:].t().t().exp() + x[1:].t().t() * w, 4),
        (lambda x, w: x.exp().add_(1) + x.exp(), 4),
        (lambda x, w: (y := x.exp()).add_(1).sum() + y.mul_(2).sum(), 6),  # read in between
        (lambda x, w: (y := x.exp()).view(12).add_(1).sum() + y.sum() + y.view(12).sum(), 8),
    ],
)
def test_views_are_shared_and_what_is_written_in_between_is_read_in_order(
    compute: Callable[..., Tensor], calls: int
) -> None:
    found, result, replayed = recorded(compute)
    assert torch.equal(replayed, result)
    assert len(found) == calls, found


def test_equal_gradients_are_tensors_of_their_own() -> None:
    """Whoever clips one of them must not clip the other."""
    x, w = torch.randn(4, 3), torch.randn(4)

    def step(given: list[Tensor], weights: Tensor) -> tuple[Tensor, list[Tensor]]:
        (rows,) = given
        return rows @ rows.T, [torch.mv(rows.T, weights), torch.mv(rows.T, weights)]

    program = Program(step, [x], w)
    _, *kept = program.assemble([x])
    first, second = program.replay([w, *kept])
    assert_close([first, second], [w @ x] * 2)
    assert first.data_ptr() != second.data_ptr()


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, y: x * x.sum().item(),
        lambda x, y: x if bool(x.sum() > 0) else y,
        lambda x, y: x.mul_(2),
        lambda x, y: x[x > 0],
    ],
)
def test_code_that_reads_values_or_writes_to_inputs_is_refused(
    compute: Callable[..., Tensor],
) -> None:
    with pytest.raises(UntraceableError):
        recorded(compute)
