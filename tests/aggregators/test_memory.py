"""A state is kept by name and by group, and a checkpoint continues it bit for bit."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from lightning_jd.aggregators import (
    Aggregator,
    Balancer,
    GramianAggregator,
    Method,
    Step,
    WeightsEvery,
    available,
)
from lightning_jd.aggregators._memory import Memory, Stateful
from lightning_jd.errors import ArgumentError
from tests.helpers.matrices import normal

METHODS: dict[str, type[Method]] = available()
STATEFUL = {name: cls for name, cls in METHODS.items() if issubclass(cls, Stateful)}
# GradVac has random orders, which belong to positions.
UNORDERED = {name: cls for name, cls in STATEFUL.items() if name != "gradvac"}
MADE = {"pcd": {"primary": "b"}}  # by default it is a position
every_stateful = pytest.mark.parametrize("cls", STATEFUL.values(), ids=STATEFUL)
every_unordered = pytest.mark.parametrize("cls", UNORDERED.values(), ids=UNORDERED)

NAMES = ("a", "b", "c")


def made(cls: type[Method]) -> Method:
    return cls(**MADE.get(cls.name, {}))


def rows(t: int, m: int = 3) -> Tensor:
    return normal(100 + t, m, 5)


def told(t: int, names: tuple[str, ...] = NAMES, group: str | None = None) -> Step:
    return Step(names, normal(200 + t, 1, 3)[0].exp()[: len(names)], group=group)


def outcome(method: Method, J: Tensor, step: Step) -> Tensor:
    """What the method says to a step, whatever it wants to know."""
    method = method.turn()
    if isinstance(method, Balancer):
        return method.weigh(step)
    if isinstance(method, GramianAggregator):
        return method.weigh(J @ J.T, step)
    assert isinstance(method, Aggregator)
    return method.combine(J, step)


def run(method: Method, steps: range) -> Tensor:
    answers = []
    for t in steps:
        answers.append(outcome(method, rows(t), told(t)))
        if t % 3 == 2:
            method.end_epoch()
    return torch.stack(answers)


@every_stateful
@pytest.mark.parametrize("steps", [0, 1, 4, 7])
def test_a_fresh_object_continues_bit_for_bit(
    cls: type[Method], steps: int, tmp_path: Path
) -> None:
    original = made(cls)
    run(original, range(steps)) if steps else None
    torch.save(original.state_dict(), tmp_path / "state.pt")
    expected = run(original, range(steps, steps + 8))
    fresh = made(cls)
    run(fresh, range(50, 53))  # it forgets what it had
    fresh.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True), strict=True)
    assert torch.equal(run(fresh, range(steps, steps + 8)), expected)


@every_stateful
def test_reset_begins_anew(cls: type[Method]) -> None:
    method = cls()
    expected = run(method, range(4))
    method.reset()
    assert torch.equal(run(method, range(4)), expected)


@every_stateful
def test_groups_have_a_state_each(cls: type[Method]) -> None:
    if cls is WeightsEvery:
        return  # it refuses them
    # The first group must not notice that there is a second one. (GradVac draws from one stream.)
    alone, both = cls(), cls()
    for t in range(4):
        expected = outcome(alone, rows(t, 2), told(t, NAMES[:2], "first"))
        found = outcome(both, rows(t, 2), told(t, NAMES[:2], "first"))
        outcome(both, rows(t + 20, 2), told(t + 20, NAMES[:2], "second"))
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@every_unordered
def test_the_order_of_the_tasks_may_change_between_steps(cls: type[Method]) -> None:
    fixed, changing = made(cls), made(cls)
    for t in range(6):
        J, step = rows(t), told(t)
        order = torch.arange(3).roll(t).tolist()
        assert step.values is not None
        permuted = Step(tuple(NAMES[i] for i in order), step.values[order])
        expected, found = outcome(fixed, J, step), outcome(changing, J[order], permuted)
        if isinstance(fixed, Balancer | GramianAggregator):
            expected = expected[order]
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@every_unordered
def test_a_task_that_is_absent_keeps_its_state(cls: type[Method]) -> None:
    method = made(cls)
    run(method, range(4))
    before = method.state_dict()["_extra_state"]["groups"][""]["kept"]
    outcome(method, rows(4, 1), told(4, ("b",)))
    after = method.state_dict()["_extra_state"]["groups"][""]["kept"]
    assert before
    for key, entry in before.items():
        for name in {"a", "c"} & set(entry["names"]):
            was = entry["value"][entry["names"].index(name)]
            now = after[key]["value"][after[key]["names"].index(name)]
            assert torch.equal(was, now) or (bool(was.isnan().all()) and bool(now.isnan().all()))


@every_stateful
@pytest.mark.parametrize("kind", ["instances", "instances_tasks"])
def test_rows_without_a_name_are_refused(cls: type[Method], kind: str) -> None:
    if issubclass(cls, Balancer) and kind == "instances_tasks":
        return  # a balancer sees the tasks of the matrix
    step = Step(NAMES, torch.ones(3), kind=kind, columns=3)
    with pytest.raises(ArgumentError, match=r"stores its state by task name.*rows='tasks'"):
        outcome(cls(), rows(0), step)


def test_a_memory_keeps_rows_of_tasks_that_come_and_go() -> None:
    memory = Memory()
    memory.keep("row", ("a", "b"), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    memory.keep("row", ("c", "a"), torch.tensor([[5.0, 6.0], [7.0, 8.0]]))
    found = memory.recall("row", ("a", "b", "c", "d"), torch.zeros(4, 2))
    assert found.tolist() == [[7.0, 8.0], [3.0, 4.0], [5.0, 6.0], [0.0, 0.0]]
    again = Memory.of(memory.state()).recall("row", ("b", "c"), torch.zeros(2, 2))
    assert again.tolist() == [[3.0, 4.0], [5.0, 6.0]]


def test_losses_that_a_method_needs_must_be_known() -> None:
    with pytest.raises(ArgumentError, match="DWA requires the loss values, got gradients only"):
        available("balancers")["dwa"]().weigh(Step(NAMES))
