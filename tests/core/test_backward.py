"""What `backward` leaves in `.grad`, for every selection, grouping and kind of aggregator."""

from unittest.mock import Mock, patch

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_jd.aggregators import GradDrop, Mean, UPGrad
from lightning_jd.core import Accumulator, backward
from lightning_jd.engines import _graph, jacobian
from lightning_jd.errors import ArgumentError, GraphError, NonFiniteError
from tests.helpers.rows import flat_gradient


class TwoTasks(nn.Module):
    """A trunk of two layers, a head per task, and a layer that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4))
        self.depth = nn.Linear(4, 1)
        self.edges = nn.Linear(4, 2)
        self.unused = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.trunk(x)
        return {"depth": self.depth(h).square().mean(), "edges": self.edges(h).square().mean()}


@pytest.fixture
def model() -> TwoTasks:
    torch.manual_seed(0)
    return TwoTasks().double()


@pytest.fixture
def x() -> Tensor:
    return torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def grads(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: p.grad for name, p in model.named_parameters()}


def plain_grads(model: nn.Module, loss: Tensor) -> dict[str, Tensor | None]:
    """What ordinary training would leave in `.grad`, without touching it."""
    named = list(model.named_parameters())
    found = torch.autograd.grad(loss, [p for _, p in named], retain_graph=True, allow_unused=True)
    return {name: g for (name, _), g in zip(named, found, strict=True)}


def test_the_update_is_the_aggregation_of_the_rows(model: TwoTasks, x: Tensor) -> None:
    losses = model(x)
    named = [(name, p) for name, p in model.named_parameters() if "unused" not in name]
    J = jacobian(losses, named)
    report = backward(losses, model, "upgrad")
    assert_close(flat_gradient(dict(named).values()), UPGrad()(J))
    assert_close(report.gramian, J @ J.T)
    assert_close(report.weights @ J, UPGrad()(J))
    assert report.names == ("depth", "edges")


@pytest.mark.parametrize("memory", ["fast", "low"])
@pytest.mark.parametrize("kind", ["tasks", "instances", "instances_tasks"])
def test_the_mean_is_plain_training(model: TwoTasks, x: Tensor, kind: str, memory: str) -> None:
    output = model.edges(model.trunk(x)).square()
    losses = {"tasks": list(output.mean(0)), "instances": output.mean(1), "instances_tasks": output}
    expected = plain_grads(model, output.mean())
    backward(losses[kind], model, "mean", memory=memory)
    assert_close(grads(model), expected)


def test_one_loss_is_plain_training(model: TwoTasks, x: Tensor) -> None:
    loss = model(x)["depth"]
    expected = plain_grads(model, loss)
    with pytest.warns(UserWarning, match=r"one scalar, so there is one objective.*split='auto'"):
        backward(loss, model, "upgrad")
    assert_close(grads(model), expected)


def test_unreached_parameters_keep_no_gradient(model: TwoTasks, x: Tensor) -> None:
    for aggregator in ("mean", "graddrop"):
        backward(model(x), model, aggregator)
        assert model.unused.weight.grad is None


def test_shared_gives_the_heads_the_gradient_of_their_own_loss(model: TwoTasks, x: Tensor) -> None:
    losses = model(x)
    expected = plain_grads(model, losses["depth"] + losses["edges"])
    trunk = [(name, p) for name, p in model.named_parameters() if "trunk" in name]
    J = jacobian(losses, trunk)
    report = backward(losses, model, "upgrad", params="shared")
    for name in ("depth.weight", "edges.bias"):
        assert_close(model.get_parameter(name).grad, expected[name])
        assert report.paths[name] == "plain"
    assert_close(report.gramian, J @ J.T)  # without the heads
    assert_close(flat_gradient(dict(trunk).values()), UPGrad()(J))


def test_shared_with_one_task_in_this_batch_is_plain_training(model: TwoTasks, x: Tensor) -> None:
    losses = {**model(x), "edges": None}
    expected = plain_grads(model, losses["depth"])
    report = backward(losses, model, "upgrad", params="shared")
    assert_close(grads(model), expected)
    assert report.weights.tolist() == [1]
    assert report.gramian.tolist() == [[0]]


@pytest.mark.parametrize(
    "select", ["trunk.*", ["trunk.0.*", "trunk.2.*"], lambda name, p: name.startswith("trunk")]
)
def test_what_is_not_selected_gets_its_plain_gradient(
    model: TwoTasks, x: Tensor, select: object
) -> None:
    losses = model(x)
    expected = plain_grads(model, losses["depth"] + losses["edges"])
    trunk = [(name, p) for name, p in model.named_parameters() if "trunk" in name]
    J = jacobian(losses, trunk)
    backward(losses, model, "upgrad", params=select)
    assert_close(flat_gradient(dict(trunk).values()), UPGrad()(J))
    for name in ("depth.weight", "edges.weight", "unused.weight"):
        assert_close(model.get_parameter(name).grad, expected[name])


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("kind", ["instances", "matrix"])
def test_the_plain_gradient_of_instances_is_their_mean_and_the_sum_over_tasks(
    model: TwoTasks, x: Tensor, kind: str, pieces: int
) -> None:
    def losses(part: Tensor) -> Tensor:
        errors = model.edges(model.trunk(part)).square()
        return errors if kind == "matrix" else errors.mean(dim=1)

    expected = plain_grads(model, losses(x).sum() / len(x))
    step = Accumulator(model, "upgrad", params="trunk.*")
    for part in x.chunk(pieces):
        step.add(losses(part))
    step.backward() if pieces > 1 else backward(losses(x), model, "upgrad", params="trunk.*")
    for name in ("edges.weight", "edges.bias"):
        assert_close(model.get_parameter(name).grad, expected[name])


@pytest.mark.parametrize("memory", ["fast", "low"])
@pytest.mark.parametrize("aggregator", ["upgrad", "graddrop"])
def test_each_layer_can_be_aggregated_on_its_own(
    model: TwoTasks, x: Tensor, aggregator: str, memory: str
) -> None:
    losses = model(x)
    expected = {}
    for layer in ("trunk.0", "trunk.2", "depth", "edges"):
        named = [(n, p) for n, p in model.named_parameters() if n.startswith(layer)]
        J = jacobian(losses, named)
        expected[layer] = (named, J, UPGrad(relative_to="row")(J))
        if aggregator == "graddrop":
            expected[layer] = (named, J, None)  # random: only the report is compared
    report = backward(losses, model, aggregator, groups="layer", memory=memory)
    for layer, (named, J, direction) in expected.items():
        assert_close(report.groups[layer].gramian, J @ J.T)
        assert report.groups[layer].parameters == tuple(name for name, _ in named)
        if direction is not None:
            assert_close(flat_gradient(dict(named).values()), direction)
    assert report.known_weights is None
    assert_close(report.gramian, sum(J @ J.T for _, J, _ in expected.values()))


def test_unknown_groups_are_refused(model: TwoTasks, x: Tensor) -> None:
    with pytest.raises(ArgumentError, match=r"`groups` must be None, 'layer' .*, got 'module'"):
        backward(model(x), model, "upgrad", groups="module")


def test_an_aggregator_that_is_no_weighting_sees_the_jacobian(model: TwoTasks, x: Tensor) -> None:
    losses = model(x)
    named = [(name, p) for name, p in model.named_parameters() if "unused" not in name]
    J = jacobian(losses, named)
    report = backward(losses, model, GradDrop(seed=3))
    assert_close(flat_gradient(dict(named).values()), GradDrop(seed=3)(J))
    assert report.known_weights is None
    assert_close(report.gramian, J @ J.T)
    assert set(report.paths.values()) == {"jacobian"}


def test_the_jacobian_of_instances_costs_no_pass_per_row(model: TwoTasks, x: Tensor) -> None:
    losses = model.depth(model.trunk(x)).square().squeeze(1)
    named = [(name, p) for name, p in model.named_parameters() if name.startswith(("trunk", "dep"))]
    J = jacobian(losses, named)
    for _ in range(3):  # the first one is certified
        features = model.trunk(x)
        losses = model.depth(features).square().squeeze(1)
        model.zero_grad()
        with patch.object(_graph, "_engine", Mock(wraps=_graph._engine)) as engine:
            report = backward(losses, model, GradDrop(seed=3))
    assert_close(flat_gradient(dict(named).values()), GradDrop(seed=3)(J))
    assert_close(report.gramian, J @ J.T)
    assert engine.run_backward.call_count == 1 < len(J)


@pytest.mark.parametrize("memory", ["fast", "low"])
@pytest.mark.parametrize("groups", [None, "layer"])
def test_a_retained_graph_can_be_differentiated_again(
    model: TwoTasks, x: Tensor, memory: str, groups: str | None
) -> None:
    losses = model(x)
    for _ in range(2):
        backward(losses, model, "upgrad", memory=memory, groups=groups, retain_graph=True)
    twice = grads(model)
    model.zero_grad()
    backward(losses, model, "upgrad", groups=groups)
    for name, gradient in grads(model).items():
        if gradient is not None:
            assert_close(twice[name], 2 * gradient)


@pytest.mark.parametrize("memory", ["fast", "low"])
@pytest.mark.parametrize("select", ["all", "trunk.*"])
def test_hooks_of_the_parameters_run_as_in_plain_training(
    model: TwoTasks, x: Tensor, memory: str, select: str
) -> None:
    seen: list[str] = []
    expected = plain_grads(model, sum(model(x).values()) / (2 if select == "all" else 1))
    model.depth.weight.register_hook(lambda g: seen.append("gradient") or 2 * g)
    model.depth.weight.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))
    backward(model(x), model, "mean", memory=memory, params=select)
    assert seen == ["gradient", "accumulated"]
    assert_close(model.depth.weight.grad, 2 * expected["depth.weight"])


def test_gradients_are_set_or_added_whatever_was_there(model: TwoTasks, x: Tensor) -> None:
    expected = plain_grads(model, sum(model(x).values()) / 2)
    model.depth.bias.grad = torch.ones(1, dtype=torch.float64)
    backward(model(x), model, "mean")
    assert_close(model.depth.bias.grad, 1 + expected["depth.bias"])
    assert_close(model.depth.weight.grad, expected["depth.weight"])
    model.zero_grad()
    backward(model(x), model, "mean")
    for name, parameter in model.named_parameters():
        assert_close(parameter.grad, expected[name])
        assert parameter.grad is None or not parameter.grad.requires_grad


@pytest.mark.parametrize("select", ["all", "c"])
@pytest.mark.parametrize("aggregator", ["mean", "equal"])
def test_no_two_parameters_share_a_gradient(aggregator: str, select: str) -> None:
    named = {name: torch.ones(3, requires_grad=True) for name in "abc"}
    a, b, c = named.values()
    both = a + b
    losses = [(both + c).square().sum(), (both - c).sum()]
    backward(losses, named, aggregator, params=select)
    a.grad.mul_(2)  # as clipping does
    factor = 1.0 if select == "c" else 0.5
    assert_close(a.grad, torch.full((3,), 14 * factor))
    assert_close(b.grad, torch.full((3,), 7 * factor))


def test_gradients_have_the_type_and_layout_of_their_parameter() -> None:
    layer = nn.Conv2d(3, 4, 3).to(torch.bfloat16).to(memory_format=torch.channels_last)
    losses = layer(torch.randn(2, 3, 5, 5, dtype=torch.bfloat16)).float().square().sum((1, 2, 3))
    backward(losses, layer, "mean")
    assert layer.weight.grad.dtype == torch.bfloat16
    assert layer.weight.grad.stride() == layer.weight.stride()


def test_losses_that_reach_no_parameter_are_refused(model: TwoTasks, x: Tensor) -> None:
    free = torch.ones(3, requires_grad=True)
    for aggregator in ("mean", "graddrop"):
        with pytest.raises(GraphError, match=r"must depend on a parameter, .* reach"):
            backward(free.square(), model, aggregator)


def test_a_loss_that_is_not_finite_is_named(model: TwoTasks, x: Tensor) -> None:
    losses = {**model(x), "edges": model(x)["edges"] * torch.nan}
    match = r"Losses must be finite, .* 1 of 2: 'edges'\. .*or set nonfinite='skip'\.$"
    with pytest.raises(NonFiniteError, match=match):
        backward(losses, model, Mean())
    assert model.depth.weight.grad is None


def test_a_gradient_that_is_not_finite_is_named() -> None:
    x = torch.tensor([1.0, 0.0], requires_grad=True)
    with pytest.raises(NonFiniteError, match=r"those of 1 of 2 objectives: '1'\. Their losses are"):
        backward([x[0].sqrt(), x[1].sqrt()], [x], "upgrad")


def test_the_report_reads_well(model: TwoTasks, x: Tensor) -> None:
    report = backward(model(x), model, "mean", params="shared")
    text = str(report)
    assert text.startswith("2 objectives, 8 parameters in 1 group(s)\npaths: ")
    assert "plain (4)" in text
    assert "milliseconds: " in text
    assert any(line.split()[0] == "depth" and line.endswith("0.5") for line in text.splitlines())
    assert set(report.milliseconds) == {"gramian", "weights", "gradients", "total"}
    parts = sum(ms for name, ms in report.milliseconds.items() if name != "total")
    assert report.milliseconds["total"] == pytest.approx(parts)


@pytest.mark.slow
def test_a_compiled_function_is_warned_of_and_the_remedy_works() -> None:
    torch.compiler.reset()
    model = torch.nn.Linear(4, 3)
    compiled = torch.compile(lambda x: model(x).square(), backend="aot_eager")
    x = torch.ones(5, 4)
    with pytest.warns(RuntimeWarning, match=r"One backward pass per instance.*force_eager"):
        report = backward(compiled(x).mean(dim=1), model, "upgrad")
    assert report.slow["weight"].passes == 5
    with torch.compiler.set_stance("force_eager"):
        losses = compiled(x).mean(dim=1)
    assert backward(losses, model, "upgrad").slow == {}
