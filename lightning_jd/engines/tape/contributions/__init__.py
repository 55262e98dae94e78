"""What each use of a parameter adds to the Gramian and to the gradients."""

from lightning_jd.engines.tape.contributions._base import (
    Budget,
    Contribution,
    Factors,
    Settled,
)
from lightning_jd.engines.tape.contributions._cross import cross_gramian
from lightning_jd.engines.tape.contributions._lookup import Lookup
from lightning_jd.engines.tape.contributions._matrices import Matrices
from lightning_jd.engines.tape.contributions._one_row import OneRow
from lightning_jd.engines.tape.contributions._outer_product import OuterProduct
from lightning_jd.engines.tape.contributions._pieces import pieces
from lightning_jd.engines.tape.contributions._products import products
from lightning_jd.engines.tape.contributions._projection import Projection
from lightning_jd.engines.tape.contributions._ragged_product import RaggedProduct
from lightning_jd.engines.tape.contributions._rows import Rows
from lightning_jd.engines.tape.contributions._shared_activations import SharedActivations
from lightning_jd.engines.tape.contributions._sum_of_uses import merge

__all__ = [
    "Budget",
    "Contribution",
    "Factors",
    "Lookup",
    "Matrices",
    "OneRow",
    "OuterProduct",
    "Projection",
    "RaggedProduct",
    "Rows",
    "Settled",
    "SharedActivations",
    "cross_gramian",
    "merge",
    "pieces",
    "products",
]
