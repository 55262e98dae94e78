"""What the graphs are made of, beside torch: a script of a failure holds what it uses of this."""

import torch
from torch import nn


def par(*shape):
    """A parameter whose products are of the order of 1."""
    return nn.Parameter(torch.randn(shape) / max(shape[-1:], default=1) ** 0.5)


def mod(module):
    """A module whose parameters are all random, biases and scales too."""
    for p in module.parameters():
        p.data = par(*p.shape).data
    return module


def own(holder):
    """The parameters of a module, or a parameter."""
    return list(holder.parameters()) if isinstance(holder, nn.Module) else [holder]


def wide(x):
    """The same in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def columns(x):
    """The same numbers in column-major order."""
    return x.movedim(0, -1).contiguous().movedim(-1, 0)


def strided(x):
    """The memory of a tensor read in row-major order."""
    return x.as_strided(x.shape, torch.empty(x.shape).stride())


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        return 3 * ctx.saved_tensors[0] ** 2 * g


class OwnLinear(torch.autograd.Function):
    """A layer whose parameters only its own backward pass knows."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g @ weight.t(), x.flatten(0, -2).t() @ g.flatten(0, -2)


class Altered(torch.autograd.Function):
    """The identity, whose gradient is changed by any function."""

    @staticmethod
    def forward(ctx, x, change):
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        changed = ctx.change(g)
        return g if changed is None else changed, None


class Scaled(torch.autograd.Function):
    """A product with a number that no graph shows."""

    @staticmethod
    def forward(ctx, x, k):
        ctx.k = k
        return x * k

    @staticmethod
    def backward(ctx, g):
        return g * ctx.k, None


class ScaledInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.k = k
        ctx.mark_dirty(x)
        return x.mul_(k)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.k, None


class SumAndDifference(torch.autograd.Function):
    """Two outputs."""

    @staticmethod
    def forward(ctx, x, y):
        return x + y, x - y

    @staticmethod
    def backward(ctx, g, h):
        return g + h, g - h


class Cumulated(torch.autograd.Function):
    """A sum over a dimension that no graph shows."""

    @staticmethod
    def forward(ctx, x, dim):
        ctx.dim = dim
        return x.cumsum(dim)

    @staticmethod
    def backward(ctx, g):
        return g.flip(ctx.dim).cumsum(ctx.dim).flip(ctx.dim), None


# Changes of a gradient, for hooks and for `Altered`; the last four are not linear.
def look():
    return lambda g: None


def scale(k):
    return lambda g: g * k


def leak(k):
    """A part of the gradient of the neighbour."""
    return lambda g: g + k * g.roll(1, 0)


def clip(k):
    return lambda g: g.clamp(-k, k)


def clip_norm(k):
    return lambda g: g * (k / wide(g).norm().clamp(min=k)).to(g.dtype)


def shift(k):
    return lambda g: g + k * (g != 0).any()


def compress(k):
    """A gradient that grows less than what comes in."""
    return lambda g: g / (1 + k * g.abs())


def on_all(change):
    """The change of each of several gradients."""

    def hook(gradients):
        changed = [None if g is None else change(g) for g in gradients]
        return tuple([g if c is None else c for g, c in zip(gradients, changed, strict=True)])

    return hook


def on_tensor(x, change):
    x.register_hook(change)


def on_node_before(x, change):
    x.grad_fn.register_prehook(on_all(change))


def on_node_after(x, change):
    x.grad_fn.register_hook(lambda inputs, _: on_all(change)(inputs))


def on_module(module, x, change):
    """The output of a module with a full backward hook."""
    handle = module.register_full_backward_hook(lambda _, inputs, __: on_all(change)(inputs))
    y = module(x)
    handle.remove()
    return y
