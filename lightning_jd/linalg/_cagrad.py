"""CAGrad: the best worst-case improvement within a ball around the mean gradient."""

import math

import numpy as np
import torch
from torch import Tensor

from lightning_jd.errors import ArgumentError, ShapeError
from lightning_jd.linalg._arrays import Array, Mask, unit_diagonal
from lightning_jd.linalg._checks import check_square
from lightning_jd.linalg._scaling import noise_level, underflow_level
from lightning_jd.linalg._simplex import min_norm
from lightning_jd.linalg._single import solve_single
from lightning_jd.linalg._stages import least_shift
from lightning_jd.linalg._threads import by_one_thread
from lightning_jd.linalg._transfer import to_array, to_tensor, together

ITERATIONS = 80
RELATIVE = 1e-13  # accuracy of the radius
SHIFT = 1e-11  # least eigenvalue of the unit-diagonal matrix


def cagrad_weights(
    gramian: Tensor, c: float, preference: Tensor | None = None, *, clipped: bool = False
) -> Tensor:
    r"""Weights of the direction of CAGrad, exact up to rounding.

    With the rows :math:`g_i` of :math:`J` and :math:`g_0 = \sum_i p_i g_i`, their mean by default,
    the direction is

    .. math::
        d = \operatorname*{arg\,max}_{\|d - g_0\| \,\le\, c \|g_0\|} \; \min_i \; g_i^\top d
          = J^\top w .

    Here :math:`w = p + y`, where :math:`y \succeq 0` and :math:`G w \succeq \lambda` are
    complementary, and the level :math:`\lambda` is the root of
    :math:`y^\top G y = c^2 \|g_0\|^2`. Two cases have none:

    - :math:`g_0` is zero, and so is the radius: :math:`w = p`.
    - The rows are Pareto stationary (a convex combination of them is zero) and the ball is large
      enough for :math:`\lambda = 0`, the best possible. Many directions reach it; the answer is the
      one nearest to the mean, the projection of :math:`g_0` onto the dual cone.

    If ``clipped``, no objective has a larger share in the correction than in the mean: with
    :math:`q_i = \min(y_i / \sum_k y_k,\, p_i)` the direction is :math:`g_0 + c \|g_0\|\, J^\top q /
    \|J^\top q\|`. In the second case, :math:`q` is made of that convex combination.

    Both are decided relative to the norms of the rows, at the noise of the dtype of ``gramian``
    (and, for float64, as soon as the shortest convex combination is 5e-6 times shorter than its
    terms): beyond it the weights would grow without bound.
    The paper takes :math:`c < 1`, which guarantees convergence of the mean loss; from
    :math:`c = 1` on, no objective is ever in conflict with the direction. The Gramian is copied to
    the host once.

    Args:
        gramian: :math:`G = J J^\top`, shape ``(m, m)``.
        c: The radius relative to the norm of the mean; finite and at least 0.
        preference: :math:`p`, shape ``(m,)``, not negative with sum one; ``None`` is 1/m each.
        clipped: Whether shares in the correction are bounded by :math:`p`.

    Returns:
        The weights :math:`w`, shape ``(m,)``, in the dtype and on the device of ``gramian``.

    Raises:
        ShapeError: If ``gramian`` is not square or ``preference`` does not fit it.
        NonFiniteError: If an entry is NaN or infinite.
        ArgumentError: If ``c`` is negative or not finite.

    Example:
        >>> cagrad_weights(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), c=0.5)
        tensor([0.7500, 0.7500])

    References:
        Liu et al., *Conflict-Averse Gradient Descent for Multi-task Learning*, 2021; clipped: Chen,
        Li, Chen and Lin, *Reward-free Alignment for Conflicting Objectives*, 2026.
    """
    check_square("gramian", gramian)
    if not 0 <= c < math.inf:
        raise ArgumentError(f"`c` must be at least 0 and finite, got {c}.")
    if preference is None:
        G, mean = to_array("gramian", gramian), np.full(len(gramian), 1 / max(1, len(gramian)))
    else:
        if preference.shape != gramian.shape[:1]:
            raise ShapeError(
                f"`preference` must have one entry per objective ({len(gramian)}), got shape "
                f"{tuple(preference.shape)}."
            )
        on_host, preference = together(gramian, preference)
        G, mean = to_array("gramian", on_host), to_array("preference", preference)
    noise = noise_level(gramian.dtype, len(G))
    weights = _weights(G, mean, c, clipped, noise, underflow_level(gramian.dtype))
    return to_tensor(weights, gramian, bounded=False)


@by_one_thread
def _weights(
    G: Array, mean: Array, c: float, clipped: bool, noise: float, underflow: float
) -> Array:
    C, d, inverse = unit_diagonal(G, 0.0, underflow)
    t = d * mean
    b = C @ t
    square = float(t @ b)
    if c == 0 or square <= noise * t.sum() ** 2:
        return mean
    radius = c * math.sqrt(square)
    # Many programs of one matrix follow: make them unique once, by far less than the tolerance.
    C = least_shift(torch.from_numpy(C), max(noise, SHIFT)).numpy()
    resolution = 2 * max(noise, SHIFT, C[0, 0] - 1)
    z = solve_single(C, b, noise, unique=True)
    length = _length(C, z)
    short = d[d > 0].min()
    o = short * inverse  # levels are measured in units of the shortest row, so that o is at most 1
    if length > radius:
        z = _reach(C, b, o, radius, float((b * d).min()) / short, 0.0, noise)
    elif length < radius:
        v = min_norm(G, noise, underflow)
        u = d * v
        norm = _length(C, u)
        if norm**2 > resolution * u.sum() ** 2:  # else Pareto stationary
            highest = (float(u @ b) + radius * norm) / short  # by weak duality
            z = _reach(C, b, o, radius, 0.0, highest, noise)
        elif clipped:
            z = u
    y: Array = inverse * z
    if clipped and (total := y.sum()) > 0:
        q = np.minimum(y / total, mean)
        length = _length(C, d * q)
        y = q * (radius / length) if length**2 > noise * (d @ q) ** 2 else 0 * q
    return mean + y


def _length(C: Array, z: Array) -> float:
    return math.sqrt(max(0.0, float(z @ C @ z)))


def _reach(
    C: Array, b: Array, o: Array, radius: float, low: float, high: float, noise: float
) -> Array:
    """``z`` at the level where its length is ``radius``; its length increases with the level.

    On a fixed active set the squared length is quadratic in the level, so that the right set gives
    the root in closed form. Bisection guards the search for that set.
    """
    level = (low + high) / 2
    z = np.zeros_like(b)
    positive: Mask | None = None
    for _ in range(ITERATIONS):
        z = solve_single(C, b - level * o, noise, unique=True, positive=positive)
        positive = z > 0
        length = _length(C, z)
        if abs(length - radius) <= RELATIVE * radius or high - low <= 1e-15 * abs(level):
            break
        low, high = (level, high) if length < radius else (low, level)
        level = _root(C, b, o, radius, positive)
        if not low < level < high:
            level = (low + high) / 2
    return z


def _root(C: Array, b: Array, o: Array, radius: float, positive: Mask) -> float:
    """The level at which ``z_P = C_PP⁻¹ (level o - b)_P`` has length ``radius``, or NaN."""
    P = np.flatnonzero(positive)
    try:
        r, s = np.linalg.solve(C[P[:, None], P], np.stack([o[P], b[P]], axis=1)).T
    except np.linalg.LinAlgError:
        return math.nan
    square, half, constant = o[P] @ r, o[P] @ s, b[P] @ s - radius**2
    discriminant = half**2 - square * constant
    if square <= 0 or discriminant < 0:
        return math.nan
    return float((half + math.sqrt(discriminant)) / square)
