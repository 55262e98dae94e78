# ruff: noqa: E501
"""The operations of random graphs, as source code with gaps.

Each entry is code that maps ``x`` to ``x``. A gap ``{...}`` is an expression of :class:`Gaps`,
whose value is written into the code. How shapes change is found by running the code; an operation that
does not fit the shape of ``x``, or leaves it without sense, is dropped. ``late(a, b)`` is a change
between steps: a before step 5, b from then on.
"""

import random

LAYERS = {
    "linear": "x = F.linear(x, {w(size, n)}, {pick(w(size), None)})",
    "linear_one_bias": "x = F.linear(x, {w(size, n)}, {w(1)})",
    "addmm": "x = torch.addmm({w(pick(1, size))}, x, {w(n, size)}, alpha={late(1, 0.5)})",
    "addmm_beta": "x = torch.addmm({w(size)}, x, {w(n, size)}, beta={late(0.5, 2)})",
    "matmul": "x = x @ {w(n, size)}",
    "left_product": "x = {w(size, s[-2])} @ x",
    "baddbmm": "x = torch.baddbmm({w(1, 1, size)}, x, {w(n, size)}.expand({b}, -1, -1))",
    "einsum": "x = torch.einsum('b...i,io->b...o', x, {w(n, size)})",
    "einsum_middle": "x = torch.einsum('bi...,io->bo...', x, {w(s[1], size)})",
    "bilinear": "x = F.bilinear(x, x.tanh(), {w(size, n, n)}, {w(size)})",
    "tied": "x = (x @ {w(n, size)}).tanh() @ {again()}.t()",
    "twice": "x = F.linear(F.linear(x, {w(n, n)}).tanh(), {again()})",
    "lora": "x = x + {late(1, 0.3)} * (x @ {w(n, 2)} @ {w(2, n)})",
    "computed_weight": "x = x @ {w(n, size)}.{pick('tanh()', 'softmax(0)', 'cumsum(1)')}",
    "product_of_weights": "x = x @ ({w(n, 2)} @ {w(2, size)})",
    "weight_norm": "x = x @ torch._weight_norm({w(n, size)}, {w(n, 1)}, 0)",
    "reordered_weight": "x = x @ {w(size, n)}.t().contiguous()",
    "rows_of_weight": "x = x @ {w(n + 3, size)}[torch.randperm({n + 3})[:{n}]]",
    "view_of_weight": "x = x @ {w(size * n)}.view({n}, {size})",
    "sliced_weight": "x = x @ {w(n, size + 2)}[:, {late(0, 1)}:{late(size, size + 1)}]",
    "residual": "x = torch.add(x, F.linear(x, {w(n, n)}, {w(n)}), alpha={late(1, 0.5)})",
    "sum_of_two": "x = torch.add(x @ {w(n, size)}, x @ {w(n, size)}, alpha={late(2, 1)})",
    "scale": "x = x * {w(*some)}",
    "shift": "x = x + {w(*some)}",
    "number": "x = {w()} * x",
    "prelu": "x = F.prelu(x, {w(pick(1, s[1]))})",
    "conv1d": "x = F.conv1d(x, {w(size, s[1], 2)}, {w(size)}, padding=1, dilation={late(1, 2)})",
    "conv1d_strided": "x = F.conv1d(x, {w(size, s[1], 3)}, stride=2, padding=2)",
    "depthwise": "x = F.conv1d(x, {w(s[1], 1, 2)}, {w(s[1])}, groups={s[1]}, padding=1)",
    "conv1d_channel": "x = F.conv1d(x.flatten(1)[:, None], {w(size, 1, 2)}, {w(size)})",
    "conv2d": "x = F.conv2d(x, {w(size, s[1], 2, 2)}, {w(size)}, padding={pick(0, 1)})",
    "conv2d_of_rows": "x = F.conv2d(x[:, None], {w(size, 1, 2, 2)}, padding=1)",
    "conv_transposed": "x = F.conv_transpose1d(x, {w(s[1], size, 2)}, {w(size)})",
    "layer_norm": "x = F.layer_norm(x, ({n},), {w(n)}, {w(n)}, {0.01 if n > 1 else 1})",
    "layer_norm_plain": "x = F.layer_norm(x, ({n},), eps={late(1e-3, 0.5)})",
    "rms_norm": "x = F.rms_norm(x, ({n},), {w(n)})",
    "group_norm": "x = F.group_norm(x, {pick(1, s[1])}, {w(s[1])}, {w(s[1])}, 0.01)",
    "instance_norm": "x = F.instance_norm(x, weight={w(s[1])}, bias={w(s[1])}, eps=0.01)",
    "batch_norm": "x = F.batch_norm(x, None, None, {w(s[1])}, {w(s[1])}, training=True, eps=0.01)",
    "BatchNorm": "x = {m(f'nn.BatchNorm1d({s[1]})')}(x)",
    "embedding": "x = F.embedding(torch.randint(7, ({b}, 3)), {w(7, size)}, {late(None, 0)})",
    "embedded": "x = x + F.embedding(torch.randint({late(7, 3)}, ({b},)), {w(7, n)})",
    "sparse_embedded": "x = x + F.embedding(torch.randint(7, ({b},)), {w(7, n)}, sparse=x.dtype.itemsize > 2)",
    "embedding_bag": "x = F.embedding_bag(torch.randint(7, ({b}, 3)), {w(7, size)}, mode='{pick('sum', 'mean')}')",
    "positions": "x = x + {w(12, n)}[:{s[-2]}]",
    "LSTM": "x = {m(f'nn.LSTM({n}, {size}, batch_first={pick(True, False)})')}(x)[0]",
    "LSTM_deep": "x = {m(f'nn.LSTM({n}, {size}, 2, bidirectional=True, batch_first=True)')}(x)[0]",
    "GRU": "x = {m(f'nn.GRU({n}, {size}, batch_first={pick(True, False)})')}(x)[0]",
    "RNN": "x = {m(f'nn.RNN({n}, {size}, batch_first=True)')}(x)[0]",
    "two_LSTMs": "x = torch.add({m(f'nn.LSTM({n}, 3, batch_first=True)')}(x)[0], "
    "{m(f'nn.LSTM({n}, 3, batch_first=True)')}(x)[0], alpha={late(2, 1)})",
    "LSTMCell": "x = {m(f'nn.LSTMCell({n}, {size})')}(x)[0]",
    "attention": "q, k, v = (x @ {w(n, 3 * n)}).chunk(3, -1)\n"
    "x = F.scaled_dot_product_attention(q, k, v, is_causal={late(True, False)})",
    "MultiheadAttention": "x = {m(f'nn.MultiheadAttention({n}, 1, batch_first={late(True, False)})')}(x, x, x, need_weights=False)[0]",
    "Transformer": "x = {m(f'nn.TransformerEncoderLayer({n}, 1, 5, 0.0, batch_first=True)')}(x)",
    "checkpoint": "x = torch.utils.checkpoint.checkpoint({m(f'nn.Linear({n}, {size})')}, x, use_reentrant=False)",
    "saved_hooks": "with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):\n"
    "    x = F.linear(x, {w(size, n)})",
    "cast": "x = (wide(x).to({late('torch.float32', 'torch.float64')}) @ "
    "{w(n, size)}.to({late('torch.float32', 'torch.float64')})).to(x.dtype)",
    "complex": "x = (wide(x).to({late('torch.float64', 'torch.complex128')}) @ "
    "{w(n, size)}.to({late('torch.float64', 'torch.complex128')})).abs().to(x.dtype)",
    "own_linear": "x = OwnLinear.apply(x, {w(n, size)})",
}
ELEMENTS = {
    "tanh": "x = x.tanh()",
    "sigmoid": "x = x.sigmoid() * 2",
    "relu": "x = x.relu()",
    "sin": "x = x.sin()",
    "gelu": "x = F.gelu(x)",
    "softplus": "x = F.softplus(x, beta={late(1, 3)})",
    "leaky": "x = F.leaky_relu(x, {late(0.1, 0.7)})",
    "power": "x = (1 + x.abs()).pow({late(0.5, -1)})",
    "clamp": "x = x.clamp(-1, {late(1, 2)})",
    "root": "x = (x.square() + 1).sqrt()",
    "ratio": "x = x / (1 + x.abs())",
    "where": "x = torch.where(x > 0, x, x.sin())",
    "masked": "x = x.masked_fill(torch.rand(x.shape) < 0.3, 0)",
    "dropout": "x = F.dropout(x, {late(0.3, 0.6)})",
    "dead_later": "x = x + {late(0.0, 0.5)} * x.cos()",
    "constant": "x = x * torch.rand(x.shape)",
    "constant_of_columns": "x = x * {late('torch.rand(x.shape)', 'columns(torch.rand(x.shape))')}",
    "softmax": "x = 3 * x.softmax({late(-1, axis)})",
    "log_softmax": "x = x.log_softmax({pick(-1, axis)})",
    "cumulated": "x = x.cumsum({late(-1, axis)}) / 2",
    "cumulated_products": "x = (1 + x.tanh() / 2).cumprod({late(-1, axis)})",
    "normalised": "x = 2 * F.normalize(x, dim={late(-1, axis)})",
    "without_mean": "x = x - x.mean({late(-1, axis)}, keepdim=True) / 2",
    "sorted": "x = x.sort({late(-1, axis)})[0]",
    "renorm": "x = x.renorm(2, {late(0, s1)}, 1.5)",
    "glu": "x = F.glu(x)",
    "keep": "kept = x",
    "kept": "x = torch.add(x, kept, alpha={late(1, 0.5)})",
    "kept_product": "x = x * kept.tanh()",
}
VIEWS = {
    "transpose": "x = x.transpose({axis}, {axis2})",
    "transpose_inner": "x = x.transpose(-1, -2) if x.ndim > 2 else x",
    "order": "x = {late('x', 'columns(x)')}",
    "contiguous": "x = x.contiguous()",
    "merge": "x = x.flatten({pick(0, 1)}, {pick(1, 2)})",
    "split": "x = x.unflatten(-1, ({n // 2}, 2))",
    "other_order": "x = x.flatten(0, 1).unflatten(0, ({s[1]}, {b}))",
    "reshape": "x = x.reshape({b}, -1, {pick(2, 3, s[1])})",
    "as_strided": "x = strided(x)",
    "as_strided_of_product": "x = strided(x * {late('torch.rand(x.shape)', 'columns(torch.rand(x.shape))')})",
    "as_strided_overlap": "x = x.contiguous().as_strided(({b}, 3), ({late(n, 1)}, 1))",
    "unsqueeze": "x = x.unsqueeze({axis})",
    "expand": "x = x.unsqueeze(1).expand({b}, 2, *x.shape[1:])",
    "narrow": "x = x.narrow(-1, {late(0, 1)}, {n - 1})",
    "stride2": "x = x[..., {late(0, 1)}::2]",
    "select": "x = x.select(1, {late(0, s1)})",
    "sum_out": "x = x.sum({pick(1, -1)}) / 2",
    "max_out": "x = x.amax({pick(1, -1)})",
    "cat": "x = torch.cat([x, x.sin()], {axis})",
    "stack": "x = torch.stack(x.chunk(2, -1), {pick(1, -1)})",
    "unbind": "x = torch.stack([y * i for i, y in enumerate(x.unbind({pick(1, axis)}), 1)], 1)",
    "repeat": "x = x.repeat_interleave(2, {pick(1, axis)})",
    "pad": "x = F.pad(x, ({late(1, 0)}, {late(0, 1)}))",
    "unfold": "x = x.unfold(-1, 2, 1)",
    "flip": "x = x.flip({pick(1, axis)})",
    "roll": "x = x.roll({late(1, 2)}, {late(-1, axis)})",
    "tril": "x = x.{late('tril()', 'triu()')}",
    "pool": "x = F.avg_pool1d(x, 2)",
    "max_pool": "x = F.max_pool1d(x, 2)",
    "upsample": "x = F.interpolate(x, scale_factor=2)",
}
INDICES = {
    "permuted": "x = x[torch.randperm({b})]",
    "repeated": "x = x[{late('torch.randperm({b})', 'torch.randint({b}, ({b},))')}]",
    "one_repeated": "i = torch.arange({b})\ni[{late(0, -1)}] = {late(0, 0)}\nx = x[i]",
    "index_select": "x = x.index_select({pick(1, axis)}, torch.randint({s1 + 1}, (3,)))",
    "gather": "x = x.gather({pick(1, axis)}, torch.randint({least}, x.shape))",
    "gather_late": "x = x.gather({late(-1, 0)}, torch.randint({least}, x.shape))",
    "scatter_add": "x = x.scatter_add({late(-1, axis)}, torch.randint({least}, x.shape), x.sin())",
    "index_add": "x = x.index_add({late(1, 0)}, torch.randint({least}, (1,)), x.narrow({late(1, 0)}, 0, 1))",
    "put": "x = x.index_put((torch.randint({b}, (2,)),), x[:2].cos(), accumulate={late(False, True)})",
    "take": "x = x.take(torch.randint({late(1, 2)}, x.shape) + torch.arange(x.numel() - 1).repeat(2)[:x.numel()].view(x.shape))",
    "top": "x = x.topk(2, {late(-1, 0)})[0]",
    "boolean": "x = x[torch.randperm({b}) < {b - 1}]",
    "diagonal": "x = x + torch.diag_embed(x.diagonal(dim1=-2, dim2=-1))",
}
MIXTURES = {
    "batch_mean": "x = x + {late(0.0, 0.5)} * x.mean(0, keepdim=True)",
    "attend_batch": "x = x + {late(0.0, 0.5)} * (x.flatten(1) @ x.flatten(1).t()).softmax(1)[:, :1] * x.mean()",
    "batch_max": "x = x - {late(0.0, 1.0)} * x.amax(0, keepdim=True)",
    "previous": "x = x + {late(0.0, 1.0)} * x.roll(1, 0)",
    "leaking_mask": "x = (torch.eye({b}) + {late(0, 0.3)} * torch.rand({b}, {b})) @ x.flatten(1)",
    "batch_std": "x = x / (1 + {late(0.0, 1.0)} * x.std())",
}
IN_PLACE = {
    "scaled_": "x = x.clone().mul_({late(2, 0.5)})",
    "tanh_": "x = (x * 2).tanh_()",
    "cumsum_": "x = x.clone()\nx[:, :2].cumsum_({late(1, 0)})",
    "cumprod_": "x = x.tanh() + 1\nx[:, :2].cumprod_({late(1, 0)})",
    "renorm_": "x = x.clone()\nx[:, :2].renorm_(2, {late(0, 1)}, 0.5)",
    "operation_": "x = x.clone()\nx[:, :2].{late('sin_()', 'cumsum_(0)')}",
    "slice_scaled_": "x = x.clone()\nx[..., :2].mul_({w(1)})",
    "slice_assigned": "y = torch.zeros_like(x)\ny[:, :2] = x[:, :2] * {w(n)}\nx = y + x.sin()",
    "slice_added": "x = x * 1\nx[:, 0] += x[:, {late(0, 1)}].clone().sin()",
    "row_copied": "x = x * 1\nx[0] = x[{late(0, -1)}].clone().cos()",
    "masked_": "x = x.clone()\nx[torch.rand(x.shape) < 0.3] = 0",
    "filled_": "x = x.clone()\nx.select(-1, 0).fill_({late(0, 1)})",
    "view_of_view_": "x = x.clone()\nx.view(-1)[: {n}].mul_({late(1, 3)})",
    "function_on_view": "x = x.clone()\nScaledInPlace.apply(x[:, :2], {late(1.0, 3.0)})",
    "hidden_sum_on_view": "x = x.clone()\nx[:, :2] = Cumulated.apply(x[:, :2], {late(1, 0)})",
    "transposed_": "x = x.clone()\nx.transpose(0, 1).{late('mul_(2)', 'cumsum_(1)')}",
    "index_add_": "x = x.clone()\nx.index_add_(0, torch.randint({b}, (1,)), x[:1].clone().sin())",
    "diagonal_": "x = x.clone()\nx.diagonal(dim1=-2, dim2=-1).add_({w(1)})",
    "relu_": "x = F.relu(x + 0.1, inplace=True)",
}
FUNCTIONS = {
    "cube": "x = Cube.apply(x.tanh())",
    "altered": "x = Altered.apply(x, {change})",
    "altered_weight": "x = x @ Altered.apply({w(n, size)}, {change})",
    "small_derivative": "x = (Scaled.apply(wide(x), {late(1.0, 1e-7)}) / {late(1.0, 1e-7)}).to(x.dtype)",
    "sum_and_difference": "y, z = SumAndDifference.apply(x, x.sin())\nx = y + {late(0.0, 0.5)} * z",
    "hidden_sum": "x = Cumulated.apply(x, {late(-1, axis)})",
}
HOOKS = {
    "hook": "{when}on_tensor(x, {change})",
    "hook_before": "{when}on_node_before(x, {change})",
    "hook_after": "{when}on_node_after(x, {change})",
    "hooked_layer": "x = F.linear(x, {w(size, n)}, {w(size)})\n{when}{registered}(x, {change})",
    "hooked_weight": "y = {w(size, n)}.t()\n{when}on_tensor(y, {change})\nx = x @ y",
    "hooked_module": "x = on_module({m(f'nn.Linear({n}, {size})')}, x, {change})",
    "retained": "x.retain_grad()",
}
#: Kinds of operations, and how often they are drawn.
KINDS = [
    (LAYERS, 40),
    (ELEMENTS, 18),
    (VIEWS, 16),
    (INDICES, 8),
    (MIXTURES, 4),
    (IN_PLACE, 9),
    (FUNCTIONS, 5),
    (HOOKS, 7),
]
OPERATIONS = {name: code for kind, _ in KINDS for name, code in kind.items()}
assert len(OPERATIONS) == sum(len(kind) for kind, _ in KINDS), "two operations of one name"

#: The objectives, from ``x``. Wide tasks are those whose rows are too large for a plain loop.
LOSSES = {
    "instances": "return (x - 0.3).square().flatten(1).mean(1)",
    "instances_along": "return (x - 0.3).square().movedim({axis}, 0).flatten(1).mean(1)",
    "instances_sum": "return x.flatten(1).sum(1)",
    "cross_entropy": "return F.cross_entropy(x.flatten(1), torch.randint({s[1]}, ({b},)), reduction='none')",
    "matrix": "return (x.flatten(1)[:, :3] - 0.3).square()",
    "matrix_of_heads": "return torch.stack([(x.flatten(1) @ {w(flat)}).tanh(), x.square().flatten(1).mean(1)], 1)",
    "tasks": "return [(x.flatten(1) @ {w(flat)} - i).square().mean() for i in range({pick(1, 2, 4)})]",
    "tasks_of_functions": "return [wide(y).mean() for y in (x.square(), (x @ {w(n)}).sin(), x.exp().clamp(max=9))]",
    "tasks_named": "return dict(a=wide(x.square()).mean(), b=wide((x @ {w(n)}).cos()).mean())",
    "wide_tasks": "x = F.linear(F.linear(x.flatten(1), {w(300, flat)}, {w(300)}).tanh(), {w(300, 300)}).tanh()\n"
    "{when}{registered}(x, {change})\n"
    "return [(x @ {w(300)} - i).square().mean() for i in range(3)]",
    "wide_tasks_plain": "x = F.linear(F.linear(x.flatten(1), {w(300, flat)}, {w(300)}).tanh(), {w(300, 300)}).tanh()\n"
    "return [(x @ {w(300)} - i).square().mean() for i in range(3)]",
}
LOSS_ODDS = [30, 8, 5, 8, 8, 8, 12, 8, 4, 5, 4]

#: What a hook or a function does to a gradient: before step 5 and from then on.
CHANGES = [
    ("look()", "look()"),
    ("scale(3)", "scale(0.5)"),
    ("scale(1)", "scale(3)"),
    ("leak(0.0)", "leak(0.5)"),
    ("clip(9)", "clip(0.02)"),
    ("clip(0.05)", "clip(0.02)"),
    ("clip_norm(0.1)", "clip_norm(0.03)"),
    ("compress(0)", "compress(20)"),
    ("look()", "shift(0.1)"),
]


class Gaps(dict):  # type: ignore[type-arg]
    """The names that gaps may use: sizes of ``x``, parameters and random choices."""

    def __init__(self, shape, seed, *, late, parameter, module):
        draw = random.Random(seed)
        axis, size = draw.randrange(len(shape)), draw.choice((2, 3, 4, 5))
        kept = [s if draw.random() < 0.6 else 1 for s in shape[1:]]
        some = kept[draw.randrange(len(kept) + 1) :]
        self.last = ""

        def change_late(a, b):
            return f"({a} if t < 5 else {b})" if late else a

        def w(*sizes):
            self.last = parameter(sizes, draw.random(), late and draw.random() < 0.2)
            return self.last

        first, then = draw.choice(CHANGES)
        super().__init__(
            s=shape, b=shape[0], n=shape[-1], s1=shape[1] - 1 if len(shape) > 1 else 0, size=size,
            some=some, flat=max(1, _product(shape[1:])), least=min(shape), axis=axis,
            axis2=draw.randrange(len(shape)), pick=lambda *options: draw.choice(options),
            late=change_late, w=w, again=lambda: self.last, m=module,
            change=change_late(first, then),
            when="if t >= 5: " if late and draw.random() < 0.4 else "",
            registered=draw.choice(["on_tensor", "on_node_before", "on_node_after"]),
        )  # fmt: skip


def _product(sizes):
    result = 1
    for size in sizes:
        result *= size
    return result
