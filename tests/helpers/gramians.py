"""Named families of Gramians, from the friendly to the degenerate, for the tests of the solvers.

Every family is a function of the number of objectives ``m`` and a seed, and returns a Gramian
``(m, m)`` in float64. ``FAMILIES`` names them all; ``gramians`` draws shapes, ranks and scales.
"""

from collections.abc import Callable

import torch
from hypothesis import strategies as st
from torch import Tensor

Family = Callable[[int, int], Tensor]


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=_generator(seed), dtype=torch.float64)


def _gramian(J: Tensor) -> Tensor:
    return J @ J.T


def gaussian(m: int, seed: int = 0) -> Tensor:
    """Independent rows in a space that is twice as large: mild conflicts."""
    return _gramian(_normal(seed, m, 2 * m))


def conflicting(m: int, seed: int = 0) -> Tensor:
    """Rows whose sum is nearly zero: every row conflicts with nearly all others."""
    J = _normal(seed, m, 2 * m)
    return _gramian(J - 0.95 * J.mean(dim=0))


def low_rank(m: int, seed: int = 0) -> Tensor:
    """Three quarters of the rank: singular, and usually not stationary."""
    return _gramian(_normal(seed, m, max(1, 3 * m // 4)))


def duplicate_rows(m: int, seed: int = 0) -> Tensor:
    """Every row appears twice (the last one once if ``m`` is odd)."""
    J = _normal(seed, (m + 1) // 2, 2 * m)
    return _gramian(J.repeat_interleave(2, dim=0)[:m])


def zero_rows(m: int, seed: int = 0) -> Tensor:
    """Every third objective has no gradient at all."""
    J = _normal(seed, m, 2 * m)
    J[::3] = 0
    return _gramian(J)


def wild_norms(m: int, seed: int = 0) -> Tensor:
    """Norms of the rows from 1e-8 to 1e8."""
    J = _normal(seed, m, 2 * m)
    return _gramian(J * torch.logspace(-8, 8, m, dtype=J.dtype)[:, None])


def ill_conditioned(m: int, seed: int = 0) -> Tensor:
    """Eigenvalues from 1 to 1e-12 in a random basis."""
    Q, _ = torch.linalg.qr(_normal(seed, m, m))
    G = (Q * torch.logspace(0, -12, m, dtype=Q.dtype)) @ Q.T
    return (G + G.T) / 2


def half_rank(m: int, seed: int = 0) -> Tensor:
    """Half as many parameters as objectives: on the edge between stationary and not."""
    return _gramian(_normal(seed, m, max(1, m // 2)))


def quarter_rank(m: int, seed: int = 0) -> Tensor:
    """Four times as many objectives as parameters: stationary, most eigenvalues are zero."""
    return _gramian(_normal(seed, m, max(1, m // 4)))


def cnn_like(m: int, seed: int = 0) -> Tensor:
    """A trained classifier's last layer: similar features, ten classes, few large residuals."""
    features = 1 + _normal(seed, m, 64)
    labels = torch.randint(10, (m,), generator=_generator(seed))
    logits = 2 * _normal(seed + 1, m, 10)
    logits[torch.arange(m), labels] += 4
    residuals = logits.softmax(dim=1) - torch.nn.functional.one_hot(labels, 10)
    return _gramian(features) * _gramian(residuals)


def stationary(m: int, seed: int = 0) -> Tensor:
    """The rows sum to zero exactly in the mathematics: nobody can improve without a loss."""
    J = _normal(seed, m, 2 * m)
    return _gramian(J - J.mean(dim=0))


def opposite_rows(m: int, seed: int = 0) -> Tensor:
    """Rows in pairs (g, -g): exactly stationary, exactly singular."""
    J = _normal(seed, (m + 1) // 2, 2 * m).repeat_interleave(2, dim=0)
    J[1::2] *= -1
    return _gramian(J[:m])


def tiny(m: int, seed: int = 0) -> Tensor:
    """A Gaussian Gramian of gradients of size 1e-8."""
    return 1e-16 * gaussian(m, seed)


def huge(m: int, seed: int = 0) -> Tensor:
    """A Gaussian Gramian of gradients of size 1e8."""
    return 1e16 * gaussian(m, seed)


def zero(m: int, seed: int = 0) -> Tensor:
    """No gradient at all."""
    return torch.zeros(m, m, dtype=torch.float64)


FAMILIES: dict[str, Family] = {
    family.__name__: family
    for family in (
        gaussian,
        conflicting,
        low_rank,
        duplicate_rows,
        zero_rows,
        wild_norms,
        ill_conditioned,
        half_rank,
        quarter_rank,
        cnn_like,
        stationary,
        opposite_rows,
        tiny,
        huge,
        zero,
    )
}


@st.composite
def gramians(draw: st.DrawFn, max_m: int = 12) -> Tensor:
    """Gramians over shape, rank, spread of the norms, overall scale and repetition of rows."""
    m = draw(st.integers(1, max_m))
    n = draw(st.integers(1, 2 * max_m))
    J = _normal(draw(st.integers(0, 2**16)), m, n)
    common = draw(st.sampled_from([0.0, 0.5, 0.95, 1.0]))
    J = J - common * J.mean(dim=0)
    spread = draw(st.sampled_from([0.0, 1.0, 4.0, 8.0]))
    J = J * torch.logspace(-spread, spread, m, dtype=J.dtype)[:, None]
    copies = draw(st.lists(st.tuples(st.integers(0, m - 1), st.integers(0, m - 1)), max_size=3))
    for source, copy in copies:
        J[copy] = J[source] * draw(st.sampled_from([0.0, 1.0, -1.0, 1e-3]))
    return _gramian(J * 10.0 ** draw(st.integers(-9, 9)))  # within the range of float32


# What a residual may be, by the dtype of the Gramian. In float32 the weights themselves are rounded
# and, where the Gramian is singular, its noise of eps √m is what the solver resolves.
RESIDUAL: dict[torch.dtype, float] = {torch.float64: 1e-10, torch.float32: 4e-6}
