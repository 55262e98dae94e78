"""The applications: references against their equations, and every script with tiny settings."""

import csv
import importlib
import json
import random
import runpy
import struct
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_jd.errors import NonFiniteError

FOLDER = Path(__file__).parents[2] / "examples" / "applications"
DOCS = Path(__file__).parents[2] / "docs"
PUBLISHED: list[Any] = ["physics", "burgers", "continual", "fairness", "shares", "adaptation"]
# Libraries warn about one another when they are imported, and that takes seconds.
FOREIGN = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
PUBLISHED += [pytest.param(name, marks=FOREIGN) for name in ("adapters", "pina_zoo")]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import an example by name, as its own folder sees it, and forget it afterwards."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def load(name: str) -> ModuleType:
        for module in ("study", name):
            monkeypatch.delitem(sys.modules, module, raising=False)
        return importlib.import_module(name)

    before = set(sys.modules)
    yield load
    for module in set(sys.modules) - before:
        if (FOLDER / f"{module}.py").is_file():
            del sys.modules[module]


def run_script(name: str, output: Path, monkeypatch: pytest.MonkeyPatch, *extra: str) -> str:
    """Run it twice, the second time from what is stored, and return its table."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "study", raising=False)
    arguments = [f"{name}.py", "--output", str(output), "--seeds", "2", *extra]
    monkeypatch.setattr(sys, "argv", arguments)
    stored = []
    for _ in range(2):
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        stored.append((output / "runs.jsonl").read_text())
    assert stored[0] == stored[1], "the second run had to find everything done"
    assert (output / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.delitem(sys.modules, "study", raising=False)
    return (output / "table.md").read_text()


# --- physics


@pytest.mark.parametrize("problem", ["Burgers", "Helmholtz"])
def test_the_reference_solves_the_equation_that_the_network_is_trained_on(
    problem: str, example: Any
) -> None:
    # Residual and reference are written independently: each is the other's oracle.
    case = example("physics").PROBLEMS[problem]
    torch.set_default_dtype(torch.float64)
    try:
        exact = case.losses(case.solution)
        wrong = case.losses(lambda points: 1.1 * case.solution(points))
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(loss < 1e-12 for loss in exact.values()), exact
    assert wrong["equation"] > 1e-4


@pytest.mark.slow
def test_burgers_trains_with_every_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = run_script("burgers", tmp_path, monkeypatch, "--steps", "3")
    assert table.count("Burgers") == 4


@pytest.mark.slow
def test_physics_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = run_script("physics", tmp_path, monkeypatch, "--steps", "2")
    assert table.count("Burgers") == table.count("Helmholtz") == 5


# --- PINA


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("problem", ["Poisson", "Helmholtz", "Klein-Gordon"])
def test_a_solution_has_no_residual_in_the_problem_of_pina(problem: str, example: Any) -> None:
    pina = pytest.importorskip("pina")
    build, solution, _ = example("pina_zoo").PROBLEMS[problem]
    case, labels = build(), ["x", "t"] if problem == "Klein-Gordon" else ["x", "y"]
    for domain in case.domains:
        case.discretise_domain(50, "random", domains=[domain])
    for name, condition in case.conditions.items():
        points = case.discretised_domains[condition.domain]
        points = pina.LabelTensor(points.tensor.double(), points.labels).requires_grad_()
        for factor in (1.0, 1.1):
            u = pina.LabelTensor(factor * solution(points.extract(labels).tensor), ["u"])
            residual = condition.equation.residual(points, u)
            largest = residual.as_subclass(Tensor).abs().max()
            assert factor > 1 or largest < 1e-12, name
            assert factor == 1 or name != "D" or largest > 0.01


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_pina_trains_with_every_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pina")
    table = run_script("pina_zoo", tmp_path, monkeypatch, "--steps", "2")
    assert table.count("Poisson") == table.count("Klein-Gordon") >= 8


# --- fairness


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """Small files in the formats of Adult and COMPAS."""
    draw = random.Random(0)
    for name in ("adult", "compas"):
        (tmp_path / name).mkdir()
    lines = []
    for _ in range(200):
        sex, income = draw.choice(["Male", "Female"]), draw.choice(["<=50K", ">50K"])
        numbers = [draw.randint(20, 60) for _ in range(6)]
        lines.append(
            f"{numbers[0]}, Private, 1, HS-grad, {numbers[1]}, Divorced, Sales, Husband, White, "
            f"{sex}, {numbers[2]}, {numbers[3]}, {numbers[4]}, United-States, {income}\n"
        )
    (tmp_path / "adult" / "adult.data").write_text("".join(lines) + "\n")
    counts = ["age", "juv_fel_count", "juv_misd_count", "juv_other_count", "priors_count"]
    heads = [*counts, "race", "sex", "c_charge_degree", "days_b_screening_arrest", "two_year_recid"]
    with (tmp_path / "compas" / "compas-scores-two-years.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(heads)
        for i in range(200):
            race = draw.choice(["African-American", "Caucasian", "Other"])
            numbers = [draw.randint(0, 9) for _ in counts]
            rows.writerow(
                [*numbers, race, "Male", "F", ["", "-1", "31"][i % 3], draw.randint(0, 1)]
            )
    return tmp_path


@pytest.mark.slow
def test_fairness_trains(people: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = run_script(
        "fairness", tmp_path / "out", monkeypatch, "--steps", "2", "--data", str(people)
    )
    assert table.count("Adult |") == table.count("COMPAS |") == 3
    assert table.count("Adult, opportunity |") == table.count("COMPAS, opportunity |") == 3


# --- images


def idx(entries: Tensor) -> bytes:
    shape = struct.pack(f">{entries.ndim}I", *entries.shape)
    return bytes([0, 0, 8, entries.ndim]) + shape + entries.numpy().tobytes()


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Small official files of MNIST and CIFAR-10, with images that tell their labels."""
    for name in ("mnist", "cifar10"):
        (tmp_path / name).mkdir()
    torch.manual_seed(0)
    labels = torch.arange(1000, dtype=torch.uint8) % 10
    digits = torch.randint(0, 20, (1000, 28, 28), dtype=torch.uint8)
    digits[torch.arange(1000), labels.long()] = 255
    (tmp_path / "mnist" / "train-images-idx3-ubyte").write_bytes(idx(digits))
    (tmp_path / "mnist" / "train-labels-idx1-ubyte").write_bytes(idx(labels))
    colours = torch.randint(0, 256, (200, 3072), dtype=torch.uint8)
    records = torch.cat([labels[:200, None], colours], dim=1).numpy().tobytes()
    for number in range(1, 6):
        (tmp_path / "cifar10" / f"data_batch_{number}.bin").write_bytes(records)
    return tmp_path


@pytest.mark.slow
def test_continual_learning_trains(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = str(images / "mnist")
    table = run_script("continual", tmp_path / "out", monkeypatch, "--steps", "2", "--data", data)
    assert table.count("split MNIST") == 4


@pytest.mark.slow
def test_shares_train(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = str(images / "cifar10")
    table = run_script("shares", tmp_path / "out", monkeypatch, "--steps", "2", "--data", data)
    assert table.count("hostile") == 5


@pytest.mark.slow
def test_adaptation_trains(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = run_script(
        "adaptation", tmp_path / "out", monkeypatch, "--steps", "2", "--data", str(images)
    )
    assert table.count("coloured") == 4


# --- adapters


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_adapters_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("peft", exc_type=ImportError)
    table = run_script("adapters", tmp_path, monkeypatch, "--steps", "2")
    assert table.count("LoRA") == 3


# --- what they share


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_page_shows_the_tables_of_the_stored_runs(
    name: str, example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for needs in {"adapters": ["peft"], "pina_zoo": ["pina"]}.get(name, []):
        pytest.importorskip(needs, exc_type=ImportError)
    module = example(name)
    monkeypatch.setattr(module, "draw", lambda *_: module.new_figure(1, 1, "not here"))
    results: dict[Any, list[Any]] = {}
    for line in (DOCS / "applications" / f"{name}.jsonl").read_text().splitlines():
        entry = json.loads(line)
        setting, _, steps = entry["run"]
        results.setdefault(module.Setting(*setting), []).append(entry["found"])
    assert {len(runs) for runs in results.values()} == {3}
    module.publish(results, tmp_path, steps)
    assert (tmp_path / "table.md").read_text() in (DOCS / "applications.md").read_text()


def test_the_best_value_is_chosen_and_a_run_that_diverged_never_is(
    example: Any, tmp_path: Path
) -> None:
    study = example("study")
    scores = {0.1: 1.0, 1.0: 2.0, 10.0: 3.0}

    def train(setting: Any, seed: int, steps: int) -> dict[str, float]:
        if setting.value == 10.0 and seed == 1:
            raise NonFiniteError("too large a step")
        return {"score": scores[setting.value] + seed}

    options = type("Options", (), {"output": tmp_path, "seeds": 2, "steps": 1})
    settings = [study.Setting("p", "m", value) for value in scores]
    results = study.run_all(train, settings, options)
    assert results[settings[2]] == [{"score": 3.0}, {}]
    chosen = study.choose(results, "score")
    assert list(chosen) == [settings[1]]
    study.print_table(chosen, {"score": "score"}, tmp_path, tuned="value")
    assert "| p | m | 1.0 | 2.5 ± 0.5 |" in (tmp_path / "table.md").read_text()
