"""From a name, a dictionary or an object to an aggregator."""

from inspect import Parameter, signature
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_jd.aggregators import (
    Aggregator,
    CAGrad,
    FromFunction,
    GramianAggregator,
    Mean,
    UPGrad,
    _registry,
    available,
    register,
    resolve,
)
from lightning_jd.errors import ArgumentError, ShapeError, UnknownNameError
from lightning_jd.linalg import gramians_trusted
from tests.helpers.examples import spec

NAMES = [
    *("alignedmtl", "cagrad", "clip", "constant", "dualproj", "graddrop", "imtlg", "krum", "mean"),
    *("mgda", "nashmtl", "pcgrad", "rgw", "sum", "trimmedmean", "upgrad"),
]


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test registers is forgotten afterwards."""
    monkeypatch.setattr(_registry, "_CLASSES", available())


def test_signatures_show_the_arguments() -> None:
    for cls in available().values():
        kinds = {parameter.kind for parameter in signature(cls).parameters.values()}
        assert not kinds & {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}, cls


def test_the_methods_of_the_paper_are_available_by_name() -> None:
    ours = {name: cls for name, cls in available().items() if "tests" not in cls.__module__}
    assert set(NAMES) <= set(ours)
    assert all(name == cls.name == cls.__name__.lower() for name, cls in ours.items())


def test_available_is_a_copy() -> None:
    available().clear()
    assert available()


def test_every_name_resolves_to_its_class() -> None:
    for name in set(NAMES) - {"clip", "constant", "krum", "trimmedmean"}:
        assert type(resolve(name)) is available()[name]


def test_a_mapping_gives_the_arguments() -> None:
    aggregator = resolve({"name": "cagrad", "c": 0.4})
    assert isinstance(aggregator, CAGrad)
    assert aggregator.c == 0.4


def test_an_aggregator_is_itself_and_a_class_is_called() -> None:
    aggregator = Mean()
    assert resolve(aggregator) is aggregator
    assert isinstance(resolve(UPGrad), UPGrad)


def test_a_function_of_the_gramian_is_an_aggregator() -> None:
    aggregator = resolve(lambda gramian: 1 / gramian.diagonal())
    assert isinstance(aggregator, FromFunction)
    assert_close(aggregator(torch.tensor([[2.0, 0.0], [0.0, 4.0]])), torch.tensor([0.5, 0.25]))


def test_a_function_must_return_one_weight_per_objective() -> None:
    with pytest.raises(
        ShapeError, match=r"must return one weight per objective, shape \(3,\), got shape \(3, 3\)"
    ):
        FromFunction(lambda gramian: gramian).weights(torch.eye(3))


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
def test_a_class_may_choose_its_name_and_be_defined_again() -> None:
    def define() -> type[Aggregator]:
        @register
        class Median(Aggregator):
            name = "my-median"

            def aggregate(self, jacobian: Tensor) -> Tensor:
                return jacobian.median(dim=0).values

        return Median

    define()
    again = define()
    assert available()["my-median"] is again
    assert_close(resolve("my-median")(torch.tensor([[1.0], [9.0], [2.0]])), torch.tensor([2.0]))


@pytest.mark.usefixtures("registry")
def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(
        ArgumentError, match=r"must be new, got 'mean', which is .*_mean\.Mean\. Set `name` in Mean"
    ):
        register(type("Mean", (Mean,), {}))


def test_an_incomplete_class_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"must define weights, Incomplete does not"):
        register(type("Incomplete", (GramianAggregator,), {}))


def test_an_unknown_name_lists_what_exists() -> None:
    with pytest.raises(
        UnknownNameError,
        match=r"`aggregator` must be one of 'alignedmtl', .*'upgrad', .*got 'upgrd'",
    ):
        resolve("upgrd")


def test_a_mapping_without_a_name_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r'must have a "name", got \{\'c\': 0\.4\}\. Write'):
        resolve({"c": 0.4})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"name": "cagrad", "radius": 0.4},
            r"must be those of CAGrad\(c: float = 0\.5\), got \{'radius': 0\.4\}: .* 'radius'\. "
            r'Write \{"name": "cagrad", "c": \.\.\.\}',
        ),
        ("constant", r"must be those of Constant\(weights: .*\), got \{\}: missing .* 'weights'"),
    ],
)
def test_arguments_that_do_not_fit_are_shown_with_the_signature(spec: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        resolve(spec)


@pytest.mark.parametrize("spec", [3, None, int])
def test_anything_else_is_refused(spec: object) -> None:
    with pytest.raises(ArgumentError, match=r"`aggregator` must be a name, a mapping .* got "):
        resolve(spec)  # type: ignore[arg-type]


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


def test_a_near_miss_is_suggested_in_any_case() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'upgrad'"):
        resolve("UPGrd")


@pytest.mark.parametrize("thing", [lambda gramian: gramian, len, 3])
def test_only_classes_have_a_name_to_register(thing: Any) -> None:
    with pytest.raises(ArgumentError, match=r"must be a class derived from Aggregator .*, got"):
        register(thing)


def test_text_that_is_a_number_is_one() -> None:
    assert resolve({"name": "upgrad", "reg": "1e-3"}).reg == 1e-3
    assert resolve({"name": "krum", "n_byzantine": "2"}).n_byzantine == 2
    assert resolve({"name": "upgrad", "solver": "quadprog"}).solver == "quadprog"
    with pytest.raises(ArgumentError, match="`reg` must be a number, got the text 'little'"):
        resolve({"name": "upgrad", "reg": "little"})


def test_answers_and_matrices_that_are_no_tensors() -> None:
    with pytest.raises(ShapeError, match=r"must return a tensor .*, got list\. Wrap it"):
        resolve(lambda gramian: [0.5, 0.5]).weights(torch.eye(2))
    with pytest.raises(ShapeError, match="`gramian` must be a tensor, got ndarray"):
        resolve("upgrad").weights(torch.eye(2).numpy())


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


def test_gramians_of_our_own_are_not_doubted_in_every_step() -> None:
    wrong = torch.tensor([[1.0, -2.0], [-2.0, 1.0]])
    with gramians_trusted():
        resolve("mean").weights(wrong)
    with pytest.raises(ShapeError, match="Is it a Gramian"):
        resolve("mean").weights(wrong)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_rounding_does_to_a_gramian_is_accepted(dtype: torch.dtype) -> None:
    for m, n in ((3, 1), (12, 4), (40, 20)):
        J = torch.randn(m, n).to(dtype) * torch.logspace(-4, 4, m).unsqueeze(1).to(dtype)
        G = J.float() @ J.float().T
        noise = torch.randn(m, m) * 1e-6 * G.diagonal().sqrt().outer(G.diagonal().sqrt())
        assert resolve("upgrad").weights(G + noise + noise.T).isfinite().all()
