"""The shared set of Jacobians: named by what they may break, and drawn over shapes and scales."""

import math

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

# The same examples in every run; no deadline, because a loaded machine is not a slow solver.
EXAMPLES = settings(max_examples=50, deadline=None, derandomize=True)


def matrix(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def normal(seed: int, m: int, n: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(m, n, dtype=torch.float64, generator=generator)


def with_norms(J: Tensor, *norms: float) -> Tensor:
    return J / J.norm(dim=1, keepdim=True) * torch.tensor(norms, dtype=J.dtype)[:, None]


def size(J: Tensor) -> Tensor:
    """The sum of the norms of the rows: the scale of everything that is made of them."""
    return J.norm(dim=1).sum()


_GAUSSIAN = normal(0, 5, 9)
_RANK_TWO = normal(1, 5, 2) @ normal(2, 2, 7)

MATRICES: dict[str, Tensor] = {
    "one_row": matrix([3.0, -4.0]),
    "conflicting_pair": matrix([-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]),
    "agreeing_rows": normal(3, 4, 6).abs(),
    "orthogonal_rows": matrix([3.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.5]),
    "full_rank_5x9": _GAUSSIAN,
    "strongly_conflicting": _GAUSSIAN - 0.95 * _GAUSSIAN.mean(dim=0),
    "stationary": _GAUSSIAN - _GAUSSIAN.mean(dim=0),
    "rank_two": _RANK_TWO,
    "more_rows_than_columns": normal(4, 7, 3) + 1.0,
    "duplicate_rows": _GAUSSIAN[[0, 1, 2, 0, 1]],
    "opposite_rows": matrix([1.0, 2.0], [-1.0, -2.0]),
    "zero_row": torch.cat([_GAUSSIAN, torch.zeros(1, 9, dtype=torch.float64)]),
    "zero": torch.zeros(3, 4, dtype=torch.float64),
    "huge": 1e8 * _GAUSSIAN,
    "tiny": 1e-8 * _GAUSSIAN,
    "uneven_norms": with_norms(_GAUSSIAN, 1e-4, 1e-2, 1.0, 1e2, 1e4),
    # The counterexamples of the paper, appendix "Properties of existing aggregators".
    "paper_mean": matrix([-2.0], [4.0]),
    "paper_mgda": matrix([2.0, 0.0], [0.0, 2.0], [0.9, 0.9]),
    "paper_dualproj": matrix([2.0, 0.0], [-2.0, 2.0]),
    "paper_pcgrad": matrix([1.0, 0.0], [0.0, 1.0], [-0.5, -1.0]),
    "paper_graddrop_conflict": matrix([-2.0], [1.0]),
    "paper_graddrop_span": matrix([1.0, -1.0], [-1.0, 1.0]),
    "paper_imtlg_conflict": matrix([1.0], [-1.0], [-1.0]),
    "paper_imtlg_scaling": matrix([3.0, 0.0], [0.0, 1.0]),
    "paper_cagrad_conflict": matrix([2.0, 0.0], [-6.0, 2.0]),  # a = 2, conflict for c < 0.89
    "paper_cagrad_scaling": matrix([2.0, 0.0], [0.0, 6.0]),
    "paper_rgw": matrix([1.0], [-2.0]),
    "paper_alignedmtl_conflict": matrix([math.sqrt(0.75), 0.0], [-0.5, 0.0]),
    "paper_alignedmtl_scaling": matrix([1.0, 0.0], [0.0, 0.9]),
}


@st.composite
def jacobians(draw: st.DrawFn, max_m: int = 6, max_n: int = 8) -> Tensor:
    """Jacobians over shape, rank, conflict, spread of the norms, repetition of rows and scale."""
    m, n = draw(st.integers(1, max_m)), draw(st.integers(1, max_n))
    rank = draw(st.integers(1, min(m, n)))
    seed = draw(st.integers(0, 2**16))
    J = normal(seed, m, n) if rank == min(m, n) else normal(seed, m, rank) @ normal(seed, rank, n)
    J = J - draw(st.sampled_from([0.0, 0.0, 0.9])) * J.mean(dim=0)
    decades = draw(st.sampled_from([0.0, 0.0, 1.0, 3.0]))
    J = J * torch.logspace(-decades, decades, m, dtype=J.dtype)[:, None]
    if draw(st.booleans()):
        J[-1] = J[0] * draw(st.sampled_from([0.0, 1.0, 0.5]))
    return J * 10.0 ** draw(st.integers(-8, 8))
