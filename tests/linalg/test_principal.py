"""Systems on active sets in NumPy: each against a dense solve of its own."""

import numpy as np
import pytest

from lightning_jd.linalg import _principal
from lightning_jd.linalg._arrays import Array, Mask
from lightning_jd.linalg._principal import PrincipalSystems, Shared, shared_set

M = 30


def matrix(seed: int = 0) -> Array:
    rows = np.random.default_rng(seed).standard_normal((M, 2 * M))
    return rows @ rows.T / (2 * M)


def sets(share: float, count: int = M, seed: int = 1) -> Mask:
    return np.random.default_rng(seed).random((count, M)) < share


def expected(C: Array, Q: Array, positive: Mask) -> Array:
    Z = np.zeros_like(Q)
    for z, q, inside in zip(Z, Q, positive, strict=True):
        P = inside.nonzero()[0]
        z[P] = np.linalg.solve(C[np.ix_(P, P)], -q[P])
    return Z


SHARED = {
    "none": Shared(None, True, 0.0),
    "all": Shared(np.ones(M, dtype=bool), True, 0.0),
    "some": Shared(np.arange(M) % 3 > 0, False, 0.0),
}


@pytest.mark.parametrize("is_upgrad", [True, False])
@pytest.mark.parametrize("shared", SHARED.values(), ids=SHARED)
def test_every_shared_set_gives_the_solution(
    shared: Shared, is_upgrad: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_principal, "shared_set", lambda positive: shared)
    C = matrix()
    Q = C if is_upgrad else np.random.default_rng(2).standard_normal((11, M))
    before = C.copy(), Q.copy()
    first, second = sets(0.6, len(Q)), sets(0.3, len(Q), seed=3)
    first[0], first[1] = False, True
    systems = PrincipalSystems(C, Q, first)
    np.testing.assert_allclose(systems.solve(slice(None), first), expected(C, Q, first), atol=1e-12)
    rows = np.array([1, 4, 10])
    np.testing.assert_allclose(
        systems.solve(rows, second[rows]), expected(C, Q[rows], second[rows]), atol=1e-12
    )
    np.testing.assert_array_equal(C, before[0])
    np.testing.assert_array_equal(Q, before[1])


def test_a_matrix_that_is_not_positive_definite_is_an_error() -> None:
    C = -np.eye(M)
    with pytest.raises(np.linalg.LinAlgError):
        PrincipalSystems(C, C, sets(0.5)).solve(slice(None), sets(0.5))


def test_the_set_that_leaves_the_least_work_is_shared() -> None:
    def differ(base: Mask) -> Mask:
        return base ^ (np.random.default_rng(0).random((200, len(base))) < 0.02)

    m = 200
    assert shared_set(differ(np.zeros(m, dtype=bool))).inside is None
    everything = shared_set(differ(np.ones(m, dtype=bool)))
    assert everything.symmetric
    assert everything.inside is not None
    assert everything.inside.all()
    half = np.arange(m) < m // 2
    most = shared_set(differ(half))
    assert not most.symmetric
    assert most.inside is not None
    np.testing.assert_array_equal(most.inside, half)
