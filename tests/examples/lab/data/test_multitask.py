"""Datasets with several tasks, from small files of their official formats."""

from pathlib import Path

import pytest
import torch

from examples.lab.data.multitask import load_multitask
from examples.lab.data.multitask._qm9 import TARGETS


def test_one_digit_is_above_and_left_of_the_other(digits: Path) -> None:
    data = load_multitask("multimnist", digits)
    assert [task.name for task in data.tasks] == ["left", "right"]
    assert [len(part) for part in (data.train, data.validation, data.test)] == [50, 10, 20]
    (images,) = data.train.inputs
    assert images.shape == (50, 1, 36, 36)
    for image, left, right in zip(
        images[:, 0], data.train.targets["left"], data.train.targets["right"], strict=True
    ):
        bright = image.max()
        assert image[left, 0] == bright
        assert image[right + 8, 8] == bright
        assert int((image == bright).sum()) == 2


def person(education: str, married: str, income: str, age: int = 40, state: str = "x") -> str:
    answers = ["0"] * 42
    answers[0], answers[4], answers[7], answers[21], answers[41] = (
        str(age),
        education,
        married,
        state,
        income,
    )
    return ", ".join(answers)


@pytest.fixture
def census(tmp_path: Path) -> Path:
    people = [
        person("Bachelors degree(BA AB BS)", "Never married", "50000+.", age=20, state="Utah"),
        person("High school graduate", "Widowed", "- 50000.", age=60, state="Ohio"),
    ]
    strange = person("Children", "Never married", "- 50000.", state="Atlantis")
    (tmp_path / "census-income.data").write_text("\n".join(people * 4) + "\n")
    (tmp_path / "census-income.test").write_text("\n".join([*people, strange, strange]) + "\n")
    return tmp_path


def test_three_answers_are_tasks_and_not_inputs(census: Path) -> None:
    data = load_multitask("census", census)
    assert [task.name for task in data.tasks] == ["income", "never married", "college"]
    assert [len(part) for part in (data.train, data.validation, data.test)] == [8, 2, 2]
    numbers, categories = data.train.inputs
    assert (numbers.shape, categories.shape) == ((8, 7), (8, 31))
    young = numbers[:, 0] < 0
    for name in ("income", "never married", "college"):
        assert torch.equal(data.train.targets[name].bool(), young)
    torch.testing.assert_close(numbers[:, 0].mean(), torch.tensor(0.0), atol=1e-5, rtol=0)


def molecule(elements: str, scale: float) -> str:
    atoms = [f"'{symbol}'" for symbol in elements]
    places = [f"[{i}.,0.5,0.]" for i in range(len(elements))]
    values = [str(scale * (i + 1)) for i in range(len(TARGETS))]
    return ",".join([f'"[{",".join(atoms)}]"', f'"[{",".join(places)}]"', *values])


@pytest.fixture
def qm9(tmp_path: Path) -> Path:
    header = ",".join(["Elements", "XYZ_Ang", *TARGETS.values()])
    for part in (1, 2, 3):
        rows = [molecule("CHO" if i % 2 else "NH", part + 0.1 * i) for i in range(10)]
        (tmp_path / f"qm9_part{part}.csv").write_text("\n".join([header, *rows]) + "\n")
    return tmp_path


def test_molecules_are_padded_and_targets_standardised(qm9: Path) -> None:
    data = load_multitask("qm9", qm9)
    assert [task.name for task in data.tasks] == list(TARGETS)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [24, 3, 3]
    elements, positions = data.train.inputs
    assert (elements.shape, positions.shape) == ((24, 29), (24, 29, 3))
    assert {tuple(row) for row in elements[:, :4].tolist()} == {(2, 1, 4, 0), (3, 1, 0, 0)}
    assert positions[0, 1].tolist() == [1.0, 0.5, 0.0]
    for task in data.tasks:
        target = data.train.targets[task.name]
        assert float(target.mean()) == pytest.approx(0.0, abs=1e-5)
        assert float(target.std()) == pytest.approx(1.0, rel=1e-4)
        assert task.scale > 0
    assert data.tasks[1].scale == pytest.approx(2 * data.tasks[0].scale, rel=1e-4)
