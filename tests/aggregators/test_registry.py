"""From a name, a dictionary or an object to an aggregator."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from examples.lab.arguments import spec
from lightning_jd import backward
from lightning_jd.aggregators import (
    ConFIG,
    DualProj,
    FromFunction,
    GramianAggregator,
    Mean,
    Step,
    UPGrad,
    _registry,
    available,
    register,
    resolve,
)
from lightning_jd.errors import ArgumentError, ShapeError, UnknownNameError

NAMES = [
    *("alignedmtl", "cagrad", "clip", "constant", "dualproj", "graddrop", "imtlg", "krum", "mean"),
    *("mgda", "nashmtl", "pcgrad", "rgw", "sum", "trimmedmean", "upgrad"),
]


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test registers is forgotten afterwards."""
    monkeypatch.setattr(_registry, "_CLASSES", available())


def test_the_methods_of_the_paper_are_available_by_name() -> None:
    ours = {name: cls for name, cls in available().items() if "tests" not in cls.__module__}
    assert set(NAMES) <= set(ours)
    assert all(name == cls.name == cls.__name__.lower() for name, cls in ours.items())


def test_every_name_resolves_to_its_class() -> None:
    for name in set(NAMES) - {"clip", "constant", "krum", "trimmedmean"}:
        assert type(resolve(name)) is available()[name]


def test_an_aggregator_is_itself_and_a_class_is_called() -> None:
    aggregator = Mean()
    assert resolve(aggregator) is aggregator
    assert isinstance(resolve(UPGrad), UPGrad)


def test_a_function_of_the_gramian_is_an_aggregator() -> None:
    aggregator = resolve(lambda gramian: 1 / gramian.diagonal())
    assert isinstance(aggregator, FromFunction)
    assert_close(aggregator(torch.tensor([[2.0, 0.0], [0.0, 4.0]])), torch.tensor([0.5, 0.25]))


@pytest.mark.usefixtures("registry")
def test_users_register_their_own() -> None:
    @register
    class Smallest(GramianAggregator):
        def __init__(self, power: float = 1.0) -> None:
            super().__init__()
            self.power = power

        def weights(self, gramian: Tensor) -> Tensor:
            return gramian.diagonal().pow(-self.power).softmax(dim=0)

    assert available()["smallest"] is Smallest
    assert repr(resolve({"name": "smallest", "power": 2.0})) == "Smallest(power=2.0)"


@pytest.mark.usefixtures("registry")
def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(
        ArgumentError,
        match=r"must be new, got 'mean', which is .*_constant\.Mean\. Set `name` in Mean",
    ):
        register(type("Mean", (Mean,), {}))


def test_an_unknown_name_lists_what_exists() -> None:
    with pytest.raises(
        UnknownNameError,
        match=r"`aggregator` must be one of 'alignedmtl', .*'upgrad', .*got 'upgrd'",
    ):
        resolve("upgrd")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"name": "cagrad", "radius": 0.4},
            r"must be those of CAGrad\(c: float = 0\.5, .*, got \{'radius': 0\.4\}: .* 'radius'\. "
            r'Write \{"name": "cagrad", "c": \.\.\., .*\}',
        ),
        ("constant", r"must be those of Constant\(weights: .*\), got \{\}: missing .* 'weights'"),
    ],
)
def test_arguments_that_do_not_fit_are_shown_with_the_signature(spec: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        resolve(spec)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("UPGrad", "upgrad"),
        ("Nash-MTL", "nashmtl"),
        ("IMTL-G", "imtlg"),
        ("aligned_mtl", "alignedmtl"),
    ],
)
def test_names_as_papers_write_them(written: str, name: str) -> None:
    assert resolve(written).name == name
    assert resolve({"name": written}).name == name


def test_text_that_is_a_number_is_one() -> None:
    assert resolve({"name": "upgrad", "reg": "1e-3"}).reg == 1e-3
    assert resolve({"name": "krum", "n_byzantine": "2"}).n_byzantine == 2
    assert resolve({"name": "upgrad", "solver": "quadprog"}).solver == "quadprog"
    with pytest.raises(ArgumentError, match="`reg` must be a number, got the text 'little'"):
        resolve({"name": "upgrad", "reg": "little"})


WEIGHTED = [name for name, cls in available().items() if issubclass(cls, GramianAggregator)]
NO_GRAMIANS = {
    "not symmetric": ([[1.0, 0.5], [-0.5, 1.0]], "must be symmetric, got 0.5 and -0.5 for rows 0"),
    "negative diagonal": ([[1.0, 0.0], [0.0, -1.0]], "got -1 on its diagonal, in row 1"),
    "not a product": ([[1.0, -2.0], [-2.0, 1.0]], "got -2 for rows 0 and 1, whose own entries"),
    "indefinite": (
        [[1.0, -0.9, -0.9], [-0.9, 1.0, -0.9], [-0.9, -0.9, 1.0]],
        "got the eigenvalue -0.8. Is it a Gramian",
    ),
}


@pytest.mark.parametrize("kind", NO_GRAMIANS)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_matrix_that_is_no_gramian_is_refused(kind: str, scale: float) -> None:
    entries, message = NO_GRAMIANS[kind]
    with pytest.raises(ShapeError, match=message if scale == 1 else "Is it a Gramian"):
        resolve("upgrad").weights(scale * torch.tensor(entries))


def test_every_method_refuses_a_matrix_that_is_no_gramian() -> None:
    entries, message = NO_GRAMIANS["indefinite"]
    for name in WEIGHTED:
        with pytest.raises(ShapeError, match=message):
            resolve(spec(name, 3)).weights(torch.tensor(entries))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_rounding_does_to_a_gramian_is_accepted(dtype: torch.dtype) -> None:
    for m, n in ((3, 1), (12, 4), (40, 20)):
        J = torch.randn(m, n).to(dtype) * torch.logspace(-4, 4, m).unsqueeze(1).to(dtype)
        G = J.float() @ J.float().T
        noise = torch.randn(m, m) * 1e-6 * G.diagonal().sqrt().outer(G.diagonal().sqrt())
        assert resolve("upgrad").weights(G + noise + noise.T).isfinite().all()


# --- Preferences by the name of the task, also where tasks come and go


PREFERRED = ("depth", "normals", "edges")
NUMBERS = {"normals": 1.0, "edges": 0.5, "depth": 2.0, "never there": 7.0}
METHODS = [UPGrad, DualProj, ConFIG]


def gramian(m: int) -> Tensor:
    J = torch.randn(m, 6, generator=torch.Generator().manual_seed(m), dtype=torch.float64)
    return J @ J.T


@pytest.mark.parametrize("cls", METHODS)
@pytest.mark.parametrize(
    "names",
    [
        PREFERRED,
        PREFERRED[:2],
        PREFERRED[1:],
        PREFERRED[::-1],
    ],
)
def test_by_name_is_by_position_for_the_tasks_that_are_there(cls: Any, names: Any) -> None:
    G = gramian(len(names))
    expected = cls([NUMBERS[name] for name in names]).weigh(G, Step(names))
    assert_close(cls(NUMBERS).weigh(G, Step(names)), expected)


@pytest.mark.parametrize("cls", METHODS)
def test_a_task_without_a_preference_is_named(cls: Any) -> None:
    with pytest.raises(
        ArgumentError, match=r"every objective, got none for 'new'\. Known: 'depth'"
    ):
        cls({"depth": 1.0}).weigh(gramian(2), Step(("depth", "new")))


@pytest.mark.parametrize("preference", [{"a": 0.0}, {"a": "much"}, {}, ["much"], 3])
def test_wrong_preferences_are_refused(preference: Any) -> None:
    with pytest.raises(ArgumentError, match="`preference` must be positive numbers, one per"):
        UPGrad(preference)


def test_in_a_step_and_from_yaml() -> None:
    model = nn.Linear(4, 3)
    losses = dict(zip(PREFERRED, model(torch.ones(2, 4)).square().mean(dim=0), strict=True))
    spec = {"name": "upgrad", "preference": NUMBERS, "reg": 0.0}
    by_name = backward(losses, model, spec, retain_graph=True).weights
    by_order = backward(losses, model, UPGrad([2.0, 1.0, 0.5], reg=0)).weights
    assert_close(by_name, by_order)
    assert repr(resolve(spec)).startswith("UPGrad(preference={'normals': 1.0")
