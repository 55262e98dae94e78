"""Tensors in, tensors out: projection onto the dual cone, programs on the simplex, certificates."""

from lightning_jd.linalg._cagrad import cagrad_weights
from lightning_jd.linalg._checks import check_finite, check_matrix, check_square
from lightning_jd.linalg._dual_cone import (
    DualConeSolution,
    dual_cone_solution,
    dual_cone_weights,
    upgrad_solution,
    upgrad_weights,
)
from lightning_jd.linalg._float64 import has_float64, in_float64, placed
from lightning_jd.linalg._halfspaces import halfspace_weights
from lightning_jd.linalg._kkt import dual_cone_residuals, min_norm_residuals
from lightning_jd.linalg._scaling import RelativeTo
from lightning_jd.linalg._semidefinite import (
    are_gramians_trusted,
    check_semidefinite,
    gramians_trusted,
)
from lightning_jd.linalg._simplex import min_norm_weights
from lightning_jd.linalg._simplex_projection import simplex_projection

__all__ = [
    "DualConeSolution",
    "RelativeTo",
    "are_gramians_trusted",
    "cagrad_weights",
    "check_finite",
    "check_matrix",
    "check_semidefinite",
    "check_square",
    "dual_cone_residuals",
    "dual_cone_solution",
    "dual_cone_weights",
    "gramians_trusted",
    "halfspace_weights",
    "has_float64",
    "in_float64",
    "min_norm_residuals",
    "min_norm_weights",
    "placed",
    "simplex_projection",
    "upgrad_solution",
    "upgrad_weights",
]
