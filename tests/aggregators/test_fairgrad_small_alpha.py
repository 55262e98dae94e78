"""FairGrad with a small alpha: an answer that satisfies its equation, or a clear error."""

import pytest
import torch
from torch.testing import assert_close

from lightning_jd.aggregators import FairGrad
from lightning_jd.errors import ArgumentError


@pytest.mark.parametrize("alpha", [0.2, 0.1, 0.05])
def test_the_equation_holds(alpha: float) -> None:
    J = torch.tensor([[1.0, 0.0], [-0.9, 0.1]], dtype=torch.float64)
    w = FairGrad(alpha).weights(J @ J.T)
    assert_close(J @ J.T @ w, w ** (-1 / alpha), rtol=1e-6, atol=0)


MANY = torch.randn(20, 10, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("J", [MANY, torch.diag(torch.tensor([1.0, 1e-4]))])
def test_too_small_is_an_error_with_a_remedy(J: torch.Tensor) -> None:
    with pytest.raises(ArgumentError, match=r"`alpha` must be large enough.*Choose a larger alpha"):
        FairGrad(0.01).weights(J @ J.T)
