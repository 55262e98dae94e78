"""Models that others wrote, against one ordinary backward pass per loss."""

import warnings

import pytest
import torch
from torch import Tensor

from examples.lab.gallery import GALLERY, GalleryCase, Specimen
from examples.lab.gallery.steps import Kind, losses_of
from lightning_jd import backward
from lightning_jd.aggregators import Constant
from lightning_jd.engines import gramian
from tests.engines.oracle import assert_gradients, assert_gramian, jacobian_blocks

pytestmark = [
    pytest.mark.slow,
    # What foreign libraries say of one another; a complaint of ours is still an error.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:^(?!lightning_jd)"),
    pytest.mark.filterwarnings("error:.*ordinary backward"),
]
FEW, MANY, SOME = 6, 512, 16  # instances
FLOAT64 = 1e-10
#: Where a model casts to float32 inside, an ordinary backward differs as much from the rows.
CAST = 1e-6
#: Rounding that is allowed beyond twice that of rows in the same precision.
FLOOR = 2e-3
LARGE = ["gcn", "gin", "molecules", "sparse-experts"]  # owners travel with indices


@pytest.fixture(params=GALLERY)
def case(request: pytest.FixtureRequest) -> GalleryCase:
    return available(request.param)


def available(name: str) -> GalleryCase:
    case = GALLERY[name]
    if missing := case.missing():
        pytest.skip(f"needs {', '.join(missing)}: pip install 'lightning-jd[gallery]'")
    if case.mixes:
        warnings.filterwarnings("ignore", "One backward pass per instance", RuntimeWarning)
    return case


def named(specimen: Specimen) -> list[tuple[str, Tensor]]:
    return [(name, p) for name, p in specimen.model.named_parameters() if p.requires_grad]


def real(tensor: Tensor) -> Tensor:
    """Complex numbers as pairs of real ones, whose inner product is that of the Gramian."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def jacobian(losses: list[Tensor], parameters: list[tuple[str, Tensor]]) -> Tensor:
    blocks = jacobian_blocks(losses, parameters)
    return torch.cat([real(b).flatten(1).double() for b in blocks if b is not None], dim=1)


@pytest.mark.parametrize(
    ("kind", "memory"), [("instances", "fast"), ("instances", "low"), ("tasks", "fast")]
)
def test_a_step_is_that_of_the_rows(case: GalleryCase, kind: Kind, memory: str) -> None:
    specimen = case.specimen(FEW)
    if not case.single:
        specimen.double()
    tolerance = 1e-4 if case.single else CAST if case.casts else FLOAT64
    parameters, losses = named(specimen), losses_of(specimen, kind)
    blocks = [b if b is None else real(b).flatten(1) for b in jacobian_blocks(losses, parameters)]
    if memory == "low":  # once is enough
        assert_gramian(gramian(losses, specimen.model), blocks, tolerance)
    report = backward(losses, specimen.model, "upgrad", memory=memory)
    assert_gramian(report.gramian, blocks, tolerance)
    assert_gradients(
        [None if p.grad is None else real(p.grad) for _, p in parameters],
        report.weights,
        blocks,
        [(name, real(p.detach())) for name, p in parameters],
        tolerance,
    )


def test_rounding_is_that_of_rows_in_the_same_precision(case: GalleryCase) -> None:
    if case.single:
        pytest.skip(f"no reference: {case.single}")
    check_rounding(case, FEW)


@pytest.mark.parametrize("name", LARGE)
def test_owners_are_known_among_many_instances_in_half_precision(name: str) -> None:
    check_rounding(available(name), MANY)


def check_rounding(case: GalleryCase, instances: int) -> None:
    """No further from float64 than twice what rows of the same graph are, in G and the update."""
    exact, specimen = case.specimen(instances).double(), case.specimen(instances)
    torch.manual_seed(0)  # dropout has the same masks in every precision
    exact_losses = exact.instances()
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        losses = specimen.instances()
    some = torch.randperm(instances)[:SOME]  # a wrong owner spoils many entries
    J, rows = (
        jacobian([vector[i] for i in some], named(model))
        for vector, model in [(exact_losses, exact), (losses, specimen)]
    )
    w = torch.randn(instances, generator=torch.Generator().manual_seed(1))
    sums = [(w.double() * exact_losses).sum(), (w * losses.float()).sum()]
    wanted, rounded = (
        jacobian([total], named(model))[0]
        for total, model in zip(sums, [exact, specimen], strict=True)
    )
    report = backward(losses, specimen.model, Constant(w.tolist()))
    update = torch.cat(
        [real(p.grad).flatten().double() for _, p in named(specimen) if p.grad is not None]
    )
    scale = J.norm(dim=1)[:, None] * J.norm(dim=1)

    def off(G: Tensor) -> float:
        return float(((G.double() - J @ J.T) / scale).abs().max())

    assert off(report.gramian[some][:, some]) <= 2 * off(rows @ rows.T) + FLOOR
    allowed = 2 * (rounded - wanted).norm() + FLOOR * wanted.norm()
    assert (update - wanted).norm() <= allowed
