"""What all aggregators have in common: shapes, scales, dtypes, one row, and clear errors."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from lightning_jd.aggregators import (
    Aggregator,
    CAGrad,
    Constant,
    DualProj,
    GramianAggregator,
    NashMTL,
    UPGrad,
    available,
)
from lightning_jd.errors import ArgumentError, NonFiniteError, ShapeError
from tests.helpers.matrices import EXAMPLES, MATRICES, jacobians, size
from tests.helpers.properties import of_definition

CLASSES = available("aggregators")
WEIGHTED = {name: cls for name, cls in CLASSES.items() if issubclass(cls, GramianAggregator)}
every_aggregator = pytest.mark.parametrize("cls", CLASSES.values(), ids=CLASSES)
every_weighted = pytest.mark.parametrize("cls", WEIGHTED.values(), ids=WEIGHTED)

# Most are homogeneous of degree one: the update is as long as the gradients.
HOMOGENEITY = dict.fromkeys(CLASSES, 1) | {"nashmtl": 0, "fairgrad": 0}
# A largest norm, a step size of weights, or the epsilon of Adam is a scale of the method.
SCALED = ("clip", "mconfig", "moco", "modo")
SCALE_FREE = {name: cls for name, cls in CLASSES.items() if name not in SCALED}
scale_free_weighted = pytest.mark.parametrize(
    "cls", [cls for cls in SCALE_FREE.values() if cls in WEIGHTED.values()], ids=lambda c: c.name
)
ONE_ROW = dict.fromkeys(CLASSES, torch.tensor([3.0, -4.0], dtype=torch.float64)) | {
    "cagrad": 1.5 * torch.tensor([3.0, -4.0], dtype=torch.float64),  # (1 + c) g
    "clip": torch.tensor([0.6, -0.8], dtype=torch.float64),  # C g / |g|
    "nashmtl": torch.tensor([0.6, -0.8], dtype=torch.float64),  # epsilon g / |g|
    "fairgrad": torch.tensor([0.6, -0.8], dtype=torch.float64),
    "dbmtl": 0.1 * torch.tensor([3.0, -4.0], dtype=torch.float64),  # (1 - beta) g
    "moco": 0.5 * torch.tensor([3.0, -4.0], dtype=torch.float64),  # beta g
    # As Adam's first step: g / (|g| + eps), entry by entry.
    "mconfig": torch.tensor([3.0 / 3.001, -4.0 / 4.001], dtype=torch.float64),
}


@every_aggregator
def test_one_row_comes_back(cls: type[Aggregator]) -> None:
    aggregator = of_definition(cls, 1)
    assert_close(aggregator(MATRICES["one_row"]), ONE_ROW[cls.name], rtol=1e-12, atol=0)


@every_aggregator
@pytest.mark.parametrize("m", [1, 4])
def test_no_gradient_gives_no_update(cls: type[Aggregator], m: int) -> None:
    d = of_definition(cls, m)(torch.zeros(m, 3))
    assert_close(d, torch.zeros(3), rtol=0, atol=0)


@pytest.mark.slow
@every_aggregator
@EXAMPLES
@given(J=jacobians())
def test_the_update_is_finite_at_any_shape_rank_and_scale(cls: type[Aggregator], J: Tensor) -> None:
    assert bool(of_definition(cls, len(J))(J).isfinite().all())


@pytest.mark.slow
@scale_free_weighted
@EXAMPLES
@given(J=jacobians(max_m=4), exponent=st.sampled_from([-8, 8]))
def test_no_threshold_is_absolute(cls: type[GramianAggregator], J: Tensor, exponent: int) -> None:
    # A power of two is exact, so that also decisions next to a threshold must be the same.
    factor = 2.0 ** (3 * exponent)
    scaled = of_definition(cls, len(J))(factor * J)
    expected = factor ** HOMOGENEITY[cls.name] * of_definition(cls, len(J))(J)
    assert (scaled - expected).norm() <= 1e-9 * expected.norm().maximum(1e-6 * size(factor * J))


@every_aggregator
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_update_has_the_dtype_of_the_jacobian(
    cls: type[Aggregator], dtype: torch.dtype
) -> None:
    J = MATRICES["full_rank_5x9"].to(dtype)
    d = of_definition(cls, 5)(J)
    assert d.dtype == dtype
    tolerance = 1e-2 if dtype.itemsize == 2 else 1e-5  # the last rounding, to the dtype
    assert_close(d.double(), of_definition(cls, 5)(J.double()), rtol=tolerance, atol=tolerance)


@every_aggregator
def test_the_arguments_are_shown(cls: type[Aggregator]) -> None:
    assert repr(of_definition(cls, 2)).startswith(f"{cls.__name__}(")
    shown = "UPGrad(preference=(1.0, 2.0), reg=0.0001, solver='auto', tolerance=None, "
    assert repr(UPGrad([1, 2])) == shown + "relative_to='auto')"
    assert repr(Constant([1, 2])) == "Constant(weights=(1.0, 2.0))"


@every_aggregator
def test_a_vector_is_refused_with_its_shape(cls: type[Aggregator]) -> None:
    with pytest.raises(ShapeError, match=r"`jacobian` must have shape \(m, n\), got \(3,\)"):
        of_definition(cls, 3)(torch.ones(3))


@every_aggregator
def test_non_finite_rows_are_named(cls: type[Aggregator]) -> None:
    J = torch.ones(4, 3)
    J[1, 0], J[3, 2] = torch.nan, torch.inf
    with pytest.raises(NonFiniteError, match=r"`jacobian` must be finite, .* row\(s\) 1, 3 of 4"):
        of_definition(cls, 4)(J)


@every_weighted
def test_a_gramian_must_be_square_and_finite(cls: type[GramianAggregator]) -> None:
    aggregator = of_definition(cls, 2)
    assert isinstance(aggregator, GramianAggregator)
    with pytest.raises(ShapeError, match=r"`gramian` must be square, got shape \(2, 3\)"):
        aggregator.weights(torch.ones(2, 3))
    with pytest.raises(NonFiniteError, match=r"`gramian` must be finite, .* row\(s\) 0, 1 of 2"):
        aggregator.weights(torch.tensor([[1.0, torch.nan], [torch.nan, 1.0]]))


@pytest.mark.parametrize("cls", [UPGrad, DualProj])
def test_a_preference_must_have_one_entry_per_objective(cls: type[UPGrad | DualProj]) -> None:
    with pytest.raises(ShapeError, match=r"`preference` must .* per objective \(3\), got 2\."):
        cls([1.0, 2.0]).weights(torch.eye(3))


@pytest.mark.parametrize("c", [-0.1, 1.0, 2.0, float("nan")])
def test_c_must_be_in_its_range(c: float) -> None:
    with pytest.raises(ArgumentError, match=r"`c` must be at least 0 and less than 1, got "):
        CAGrad(c)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("inf"), float("nan")])
def test_epsilon_must_be_positive(epsilon: float) -> None:
    with pytest.raises(ArgumentError, match=r"`epsilon` must be positive and finite, got "):
        NashMTL(epsilon)


@pytest.mark.parametrize("weights", [[], [1.0, float("nan")]])
def test_constant_weights_must_be_finite(weights: list[float]) -> None:
    with pytest.raises(ArgumentError, match=r"`weights` must be finite numbers, .* got \["):
        Constant(weights)
