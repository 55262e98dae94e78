"""Every flow is a claim about which inputs matter to which outputs; autograd knows the truth."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_jd import gramian, jacobian
from lightning_jd.engines import Objectives
from lightning_jd.engines.tape import register_flow, unregister_flow
from lightning_jd.engines.tape.graph import Indices, local_vjp, records_of, walk
from lightning_jd.engines.tape.owners._owners import NOBODY, Owners, in_order, joined
from lightning_jd.engines.tape.owners.flow import REDUCED, Crossing, flow_of, is_known
from lightning_jd.errors import ArgumentError

# sizes are equal on purpose wherever they can be, so that axes are easily mistaken for one another
X = torch.randn(4, 4, 4, dtype=torch.float64) / 2
IMAGE = torch.randn(4, 4, 4, 4, dtype=torch.float64)
M = torch.randn(4, 4, dtype=torch.float64)
V = torch.randn(4, dtype=torch.float64)
MASK = torch.tensor([True, False, True, True])
SOME = torch.tensor([3, 0, 0, 1])
ORDER = torch.tensor([2, 0, 3, 1])
ZEROS = torch.zeros(4, 4, 4, dtype=torch.long)
ALL = torch.arange(4)

OPERATIONS: dict[str, tuple[Callable[..., object], tuple[Tensor, ...]]] = {
    "add": (lambda x, y: x + y, (X, X)),
    "add a vector": (lambda x, y: x + y, (X, V)),
    "add a column": (lambda x, y: x + y, (X, X[:, :, :1])),
    "add a scalar": (lambda x, y: x + y, (X, V[0])),
    "multiply": (lambda x, y: x * y, (X, X[:, :1])),
    "divide": (lambda x, y: x / (y + 3), (X, V)),
    "power": (lambda x, y: (x + 9) ** y, (X, V)),
    "where": (lambda x, y: torch.where(X > 0, x, y), (X, V)),
    "maximum": (torch.maximum, (X, X.flip(0))),
    "lerp": (torch.lerp, (X, X, X)),
    "addcmul": (torch.addcmul, (X, X, V)),
    "masked fill": (lambda x: x.masked_fill(MASK, 0.0), (X,)),
    "gelu": (F.gelu, (X,)),
    "dropout": (lambda x: F.dropout(x, 0.5), (X,)),
    "prelu": (F.prelu, (IMAGE, V)),
    "expand": (lambda x: x.expand(4, 4, 4), (M,)),
    "expand a column": (lambda x: x.expand(4, 4, 4), (X[:, :1],)),
    "tril": (torch.tril, (X,)),
    "clamp": (lambda x, y: x.clamp(min=y), (X, V)),
    "to another type": (lambda x: x.float(), (X,)),
    "transpose": (lambda x: x.transpose(0, 2), (X,)),
    "t": (lambda x: x.t(), (M,)),
    "permute": (lambda x: x.permute(2, 0, 1), (X,)),
    "permute from behind": (lambda x: x.permute(-1, 0, -2), (X,)),
    "flatten": (lambda x: x.flatten(0, 1), (X,)),
    "flatten all": (lambda x: x.flatten(), (X,)),
    "split an axis": (lambda x: x.view(2, 2, 4, 4), (X,)),
    "regroup": (lambda x: x.reshape(2, 8, 4), (X,)),
    "merge and split elsewhere": (lambda x: x.transpose(0, 1).reshape(16, 2, 2), (X,)),
    "squeeze": (lambda x: x.squeeze(1), (X[:, :1],)),
    "unsqueeze": (lambda x: x.unsqueeze(-2), (X,)),
    "repeat": (lambda x: x.repeat(2, 1, 3), (X,)),
    "repeat along a new axis": (lambda x: x.repeat(4, 1, 1), (M,)),
    "repeat interleave": (lambda x: x.repeat_interleave(2, 1), (X,)),
    "flip": (lambda x: x.flip(0, 2), (X,)),
    "roll": (lambda x: x.roll((1, -1), (0, 2)), (X,)),
    "roll all": (lambda x: x.roll(1), (X,)),
    "sum": (lambda x: x.sum(1), (X,)),
    "sum of two axes": (lambda x: x.sum((0, -1), keepdim=True), (X,)),
    "mean": (lambda x: x.mean(-1), (X,)),
    "max": (lambda x: x.max(0).values, (X,)),
    "amax": (lambda x: x.amax((1, 2)), (X,)),
    "logsumexp": (lambda x: x.logsumexp(1), (X,)),
    "norm": (lambda x: x.norm(dim=-1), (X,)),
    "variance": (lambda x: x.var(0), (X,)),
    "product": (lambda x: x.prod(1), (X,)),
    "variance and mean": (lambda x: sum(torch.var_mean(x, 1)), (X,)),
    "softmax": (lambda x: x.softmax(-1), (X,)),
    "log softmax": (lambda x: x.log_softmax(0), (X,)),
    "cumsum": (lambda x: x.cumsum(1), (X,)),
    "sort": (lambda x: x.sort(0).values, (X,)),
    "topk": (lambda x: x.topk(2, dim=1).values, (X,)),
    "glu": (lambda x: F.glu(x, dim=1), (X,)),
    "cross entropy": (lambda x: F.cross_entropy(x, SOME, reduction="none"), (M,)),
    "cross entropy of pixels": (
        lambda x: F.cross_entropy(x, SOME.expand(4, 4), reduction="none"),
        (X,),
    ),
    "multi-margin loss": (lambda x: F.multi_margin_loss(x, SOME, reduction="none"), (M,)),
    "binary cross entropy": (
        lambda x: F.binary_cross_entropy_with_logits(x, X.sigmoid(), reduction="none"),
        (X,),
    ),
    "squared error": (lambda x, y: F.mse_loss(x, y, reduction="none"), (X, X.flip(0))),
    "alignment": (
        lambda x: F.ctc_loss(
            x.log_softmax(-1),
            torch.ones(4, 2, dtype=torch.long),
            torch.full((4,), 4),
            torch.full((4,), 2),
            reduction="none",
        ),
        (X,),
    ),
    "select": (lambda x: x.select(1, 2), (X,)),
    "select the last": (lambda x: x[..., -1], (X,)),
    "slice": (lambda x: x[1:3], (X,)),
    "every second": (lambda x: x[:, ::2], (X,)),
    "cat": (lambda x, y: torch.cat([x, y], 1), (X, X[:, :2])),
    "cat with a constant": (lambda x: torch.cat([x, X], 0), (X,)),
    "cat with a constant first": (lambda x, y: torch.cat([X[:1], x, y], 0), (X, X)),
    "stack": (lambda x, y: torch.stack([x, y], 1), (X, X)),
    "gather": (lambda x: x.gather(1, SOME.view(1, 4, 1).expand(4, 4, 4)), (X,)),
    "gather a part": (lambda x: x.gather(1, SOME[:2].view(1, 2, 1).expand(3, 2, 4)), (X,)),
    "pick entries": (lambda x: x[ALL, SOME], (X,)),
    "pick entries of the last axes": (lambda x: x[:, ALL, SOME], (X,)),
    "diagonal by index": (lambda x: x[ALL, ALL], (X,)),
    "index a part": (lambda x: x[SOME], (X,)),
    "index an inner axis": (lambda x: x[:, SOME], (X,)),
    "index with a matrix": (lambda x: x[:, SOME.view(2, 2)], (X,)),
    "index separated axes": (lambda x: x[ALL, :, SOME], (X,)),
    "index with a mask": (lambda x: x[MASK], (X,)),
    "index select": (lambda x: x.index_select(0, SOME), (X,)),
    "index select in another order": (lambda x: x.index_select(1, ORDER), (X,)),
    "index with two matrices": (lambda x: x[ORDER.view(2, 2), ALL.view(2, 2)], (X,)),
    "index from behind": (lambda x: x[ORDER - 4], (X,)),
    "index with a mask of two axes": (lambda x: x[X[0] > 0], (X,)),
    "masked select": (lambda x: x.masked_select(X > 0), (X,)),
    "masked scatter": (lambda x, y: x.masked_scatter(X > 0, y), (X, X.flatten())),
    "gather along the axis": (lambda x: x.gather(0, ORDER.view(4, 1, 1).expand(4, 4, 4)), (X,)),
    "gather here and there": (lambda x: x.gather(0, (X > 0).long()), (X,)),
    "index add": (lambda x, y: x.index_add(0, SOME, y, alpha=2), (X, X)),
    "index copy": (lambda x, y: x.index_copy(1, ORDER, y), (X, X)),
    "index put": (lambda x, y: x.index_put((SOME,), y), (X, V)),
    "index put and add": (lambda x, y: x.index_put((SOME, ALL), y, accumulate=True), (X, M)),
    "assign to separated axes": (lambda x, y: _assigned(x, y, (ORDER, slice(None), ALL)), (X, M)),
    "index put with a mask": (lambda x, y: x.index_put((MASK,), y), (X, X[:3])),
    "assign to an index": (lambda x, y: _assigned(x, y, ORDER[:2]), (X, X[:2])),
    "scatter add": (lambda x, y: x.scatter_add(0, SOME.view(4, 1, 1).expand(4, 4, 4), y), (X, X)),
    "scatter add to one": (lambda x, y: x.scatter_add(0, ZEROS, y), (X, X)),
    "scatter": (lambda x, y: x.scatter(0, ORDER.view(4, 1, 1).expand(4, 4, 4), y), (X, X)),
    "scatter a number": (lambda x: x.scatter(0, ZEROS, 0.5), (X,)),
    "scatter mean": (
        lambda x, y: x.scatter_reduce(0, SOME.view(4, 1, 1).expand(4, 4, 4), y, "mean"),
        (X, X),
    ),
    "scatter max": (lambda x, y: x.scatter_reduce(0, (X > 0).long(), y, "amax"), (X, X.flip(0))),
    "slice scatter": (lambda x, y: x.slice_scatter(y, 0, 1, 3), (X, X[:2])),
    "fill at an index": (lambda x: x.index_fill(0, SOME, 0.0), (X,)),
    "repeat by counts": (lambda x: x.repeat_interleave(ALL, dim=0), (X,)),
    "sample at places": (
        lambda x, y: F.grid_sample(x, y, align_corners=False),
        (IMAGE, IMAGE[..., :2]),
    ),
    "spectrum": (lambda x: torch.view_as_real(torch.fft.rfft(x, dim=1)), (X,)),
    "filter": (lambda x: torch.fft.irfft2(torch.fft.rfft2(x), s=(4, 4)), (X,)),
    "cholesky": (lambda x: torch.linalg.cholesky(x @ x.mT + 9 * torch.eye(4)), (X,)),
    "solve": (lambda x, y: torch.linalg.solve(x + 9 * torch.eye(4), y), (X, X)),
    "solve for vectors": (lambda x, y: torch.linalg.solve(x + 9 * torch.eye(4), y), (IMAGE, X)),
    "solve for all": (lambda x, y: torch.linalg.solve(x + 9 * torch.eye(4), y), (X, IMAGE)),
    "mm": (torch.mm, (M, M)),
    "addmm": (torch.addmm, (V, M, M)),
    "bmm": (torch.bmm, (X, X)),
    "baddbmm": (torch.baddbmm, (M, X, X)),
    "mv": (torch.mv, (M, V)),
    "einsum": (lambda x, y: torch.einsum("bij,jk->bik", x, y), (X, M)),
    "bilinear": (F.bilinear, (M, M, X)),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), (IMAGE,) * 3),
    "attention with shared keys": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        (IMAGE, IMAGE[:, :2], IMAGE[:, :2]),
    ),
    "attention to fewer": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k),
        (IMAGE, IMAGE[:, :, :2]),
    ),
    "conv1d": (F.conv1d, (X, X, V)),
    "conv2d": (lambda x, w: F.conv2d(x, w, padding=1), (IMAGE, IMAGE)),
    "grouped convolution": (lambda x, w: F.conv2d(x, w, groups=4), (IMAGE, IMAGE[:, :1])),
    "transposed convolution": (F.conv_transpose2d, (IMAGE, IMAGE)),
    "max pooling": (lambda x: F.max_pool2d(x, 2), (IMAGE,)),
    "average pooling": (lambda x: F.avg_pool1d(x, 2), (X,)),
    "adaptive pooling": (lambda x: F.adaptive_avg_pool2d(x, 2), (IMAGE,)),
    "upsampling": (lambda x: F.interpolate(x, scale_factor=2), (IMAGE,)),
    "padding": (lambda x: F.pad(x, (1, 0, 0, 1)), (X,)),
    "padding by reflection": (lambda x: F.pad(x, (1, 1), mode="reflect"), (X,)),
    "pixel shuffle": (lambda x: F.pixel_shuffle(x, 2), (IMAGE,)),
    "patches": (lambda x: F.unfold(x, 2), (IMAGE,)),
    "windows": (lambda x: x.unfold(1, 2, 1), (X,)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), (X, V, V)),
    "layer norm of two axes": (lambda x, w: F.layer_norm(x, (4, 4), w), (X, M)),
    "group norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (IMAGE, V, V)),
    "rms norm": (lambda x, w: F.rms_norm(x, (4,), w), (X, V)),
    "batch norm in training": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        (IMAGE, V, V),
    ),
    "batch norm": (
        lambda x, w, b: F.batch_norm(x, V * 0, V**2 + 1, w, b, training=False),
        (IMAGE, V, V),
    ),
    "instance norm": (lambda x, w, b: F.instance_norm(x, None, None, w, b), (IMAGE, V, V)),
    "embedding": (lambda w: F.embedding(SOME.view(2, 2), w), (M,)),
    "cosine similarity": (lambda x, y: F.cosine_similarity(x, y, dim=1), (X, X.flip(1))),
}
#: What the flows cannot prove, and therefore must not claim.
UNPROVEN = {"flatten all", "masked select", "roll all"}


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_flow_claims_too_much(name: str) -> None:
    operation, inputs = OPERATIONS[name]
    leaves = [x.clone().requires_grad_() for x in inputs]
    output = operation(*leaves)
    graph = walk(Objectives(("0",), "tasks", (output,)), [])
    records = records_of(graph.signature)
    known = 0
    indices = Indices(graph.nodes)
    for number, (node, record) in enumerate(zip(graph.nodes, records, strict=True)):
        if record.inputs and all(len(shape) > 0 for shape in record.shapes):
            known += _check(node, record, records, partial(indices.of, number))
    assert name in UNPROVEN or known, "no owner flows through: is the name of the node known?"


def _assigned(x: Tensor, y: Tensor, where: Any) -> Tensor:
    result = x.clone()
    result[where] = y
    return result


def _check(
    node: torch.autograd.graph.Node, record: tuple, records: tuple, read: Callable[[], Any]
) -> int:
    """Owners along each axis of the outputs, one slice each; returns how often owners flowed on."""
    shapes = [
        None if child is None else records[child.node].shapes[child.output]
        for child in record.inputs
    ]
    facts = record.facts if isinstance(record.facts, tuple) else ()
    flowed_on = 0
    for axis in range(len(record.shapes[0])):
        owners = in_order(record.shapes[0][axis]).moved(axis)
        outputs = [owners] + [None] * (len(record.shapes) - 1)
        flowed = flow_of(record.name, Crossing(outputs, record.shapes, shapes, facts, read))
        assert len(flowed) == len(shapes)
        for slot, (found, shape) in enumerate(zip(flowed, shapes, strict=True)):
            if isinstance(found, Owners) and shape is not None:
                flowed_on += 1
                assert found.axis is None or len(found.ids) == shape[found.axis]
                _assert_owned(node, record, owners, slot, found, shape)
            flowed_on += found is REDUCED
    return flowed_on


def _assert_owned(
    node: torch.autograd.graph.Node,
    record: tuple,
    owners: Owners,
    slot: int,
    found: Owners,
    shape: tuple[int, ...],
) -> None:
    random = torch.rand(record.shapes[0], dtype=torch.float64) + 0.5
    random = random.to(node._input_metadata[0].dtype)
    for owner in range(len(owners.ids)):
        mask = torch.as_tensor(owners.ids == owner)
        mask = mask.view([-1 if axis == owners.axis else 1 for axis in range(random.ndim)])
        cotangents = [random * mask] + [None] * (len(record.shapes) - 1)
        gradient = local_vjp(node, cotangents)[slot]
        if gradient is None:
            continue
        if gradient.shape != shape:
            gradient = gradient.sum_to_size(shape)
        mine = torch.as_tensor(found.ids == owner)
        if found.axis is not None:
            mine = mine.view([-1 if axis == found.axis else 1 for axis in range(len(shape))])
        strangers = gradient * ~mine
        assert not strangers.any(), f"{record.name}: loss {owner} reaches what is not its own"


def test_an_operation_without_a_flow_proves_nothing() -> None:
    at = Crossing([in_order(3)], [(3,)], [(3,), (3,)], ())
    assert not is_known("UnheardOfBackward0")
    assert flow_of("UnheardOfBackward0", at) == [None, None]


def test_two_uses_that_disagree_have_no_owners() -> None:
    assert joined(in_order(3), in_order(3).taken(slice(None, None, -1))) is None
    assert joined(in_order(3), in_order(3).moved(1)) is None
    some = Owners(0, np.array([0, NOBODY, 2]))
    both = joined(in_order(3), some)
    assert both is not None
    assert both.equals(in_order(3))


@pytest.mark.parametrize(
    ("old", "axis", "new", "expected"),
    [
        ((2, 3), 0, (6,), (0, [0, 0, 0, 1, 1, 1])),
        ((3, 2), 1, (6,), (0, [0, 1, 0, 1, 0, 1])),
        ((6,), 0, (2, 3), None),
        ((2, 3, 2), 0, (2, 6), (0, [0, 1])),
        ((2, 3, 2), 1, (2, 6), (1, [0, 0, 1, 1, 2, 2])),
        ((2, 3, 2), 1, (6, 2), (0, [0, 1, 2, 0, 1, 2])),
        ((4, 3), 0, (2, 6), None),
        ((3, 4), 0, (1, 3, 4), (1, [0, 1, 2])),
        ((3, 1), 0, (3,), (0, [0, 1, 2])),
    ],
)
def test_owners_follow_a_reshape(
    old: tuple[int, ...], axis: int, new: tuple[int, ...], expected: tuple[int, list[int]] | None
) -> None:
    found = in_order(old[axis]).moved(axis).reshaped(old, new)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert (found.axis, found.ids.tolist()) == expected


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x / 2

    @staticmethod
    def backward(ctx: object, D: Tensor) -> Tensor:
        return D / 2


def test_a_flow_of_a_user_takes_the_place_of_experiments() -> None:
    first = nn.Linear(3, 3)
    asked = []

    @register_flow("HalvedBackward")
    def flow(at: Crossing) -> Sequence[object]:
        asked.append(at.shapes)
        return [at.only]

    try:
        losses = Halved.apply(first(torch.randn(4, 3))).square().sum(dim=1)
        J = jacobian(losses, first, chunk=1)
        torch.testing.assert_close(gramian(losses, first), J @ J.T)
        assert asked == [((4, 3),)]
        with pytest.raises(ArgumentError, match=r"got 'HalvedBackward'.*`unregister_flow`"):
            register_flow("HalvedBackward")(flow)
    finally:
        unregister_flow("HalvedBackward")
    assert not is_known("HalvedBackward")
    torch.testing.assert_close(gramian(losses, first), J @ J.T)  # plans are made anew
    assert len(asked) == 1
