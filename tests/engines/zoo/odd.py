"""Graphs that autograd itself takes a special way through."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.engines.zoo._registry import BATCH, Built, case, named, per_instance


class Cube(torch.autograd.Function):
    """An activation that autograd knows nothing about."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


class OwnLinear(torch.autograd.Function):
    """A layer whose parameters only its own backward pass knows."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x @ weight.t() + bias

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g @ weight, g.t() @ x, g.sum(0)


class Reversed(torch.autograd.Function):
    """The identity, whose gradient changes its sign."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -0.5 * g


@case
def custom_activation() -> Built:
    first, second = nn.Linear(4, 4), nn.Linear(4, 3)
    return per_instance(second(Cube.apply(first(torch.randn(BATCH, 4))))), named(first, second)


@case
def custom_function_with_parameters() -> Built:
    first, second = nn.Linear(4, 4), nn.Linear(4, 3)
    h = OwnLinear.apply(torch.randn(BATCH, 4), first.weight, first.bias)
    return per_instance(second(h.tanh())), named(first, second)


@case
def gradient_reversal() -> Built:
    first, second = nn.Linear(4, 4), nn.Linear(4, 3)
    return per_instance(second(Reversed.apply(first(torch.randn(BATCH, 4))))), named(first, second)


@case
def gradient_reversal_right_at_a_weight() -> Built:
    layer = nn.Linear(4, 3)
    output = nn.functional.linear(torch.randn(BATCH, 4), Reversed.apply(layer.weight), layer.bias)
    return per_instance(output), named(layer)


@case
def inplace_relu_and_residual_add() -> Built:
    first, second = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
    x = torch.randn(BATCH, 3, 5, 5)
    y = second(nn.functional.relu(first(x), inplace=True))
    y += x
    return per_instance(nn.functional.relu_(y)), named(first, second)


@case
def inplace_scaling_and_masking_of_a_linear_layer() -> Built:
    first, second = nn.Linear(4, 4), nn.Linear(4, 3)
    h = first(torch.randn(BATCH, 4)).mul_(2).add_(1).clamp_(-1, 1)
    h[:, 0] = 0
    return per_instance(second(h)), named(first, second)


@case
def output_written_into_a_buffer() -> Built:
    first, second, buffer = nn.Linear(4, 2), nn.Linear(4, 3), torch.zeros(BATCH, 5)
    x = torch.randn(BATCH, 4)
    buffer[:, :2] = first(x)
    buffer[:, 2:] = second(x)
    return per_instance(buffer.tanh()), named(first, second)


@case
def checkpointed_block() -> Built:
    first, block = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    h = first(torch.randn(BATCH, 4))
    return per_instance(checkpoint(block, h, use_reentrant=False)), named(first, block)


@case
def checkpointed_convolutions_with_dropout() -> Built:
    blocks = nn.Sequential(
        *(
            nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.ReLU(), nn.Dropout(0.3))
            for _ in range(3)
        )
    )
    x = torch.randn(BATCH, 2, 4, 4)
    return per_instance(checkpoint_sequential(blocks, 2, x, use_reentrant=False)), named(blocks)


@case
def frozen_layer_in_the_middle() -> Built:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    model[2].requires_grad_(False)
    return per_instance(model(torch.randn(BATCH, 4))), [
        (name, p) for name, p in model.named_parameters() if p.requires_grad
    ]


@case
def frozen_weight_with_trained_bias() -> Built:
    first, second = nn.Linear(4, 4), nn.Conv1d(1, 2, 2)
    first.weight.requires_grad_(False)
    second.weight.requires_grad_(False)
    output = second(first(torch.randn(BATCH, 4)).unsqueeze(1))
    return per_instance(output), [("first.bias", first.bias), ("second.bias", second.bias)]


@case
def trained_weight_with_frozen_bias() -> Built:
    first, second = nn.Linear(4, 4), nn.LayerNorm(4)
    first.bias.requires_grad_(False)
    second.bias.requires_grad_(False)
    output = second(first(torch.randn(BATCH, 4)))
    return per_instance(output), [("first", first.weight), ("second", second.weight)]


@case
def only_some_parameters_are_asked_for() -> Built:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    return per_instance(model(torch.randn(BATCH, 4))), [
        ("0.weight", model[0].weight),
        ("1.bias", model[1].bias),
        ("2.bias", model[2].bias),
    ]


@case
def unused_parameters() -> Built:
    used, unused = nn.Linear(4, 3), nn.Linear(4, 3)
    return per_instance(used(torch.randn(BATCH, 4))), named(used, unused)


@case
def trunk_without_gradient() -> Built:
    trunk, head = nn.Linear(4, 4), nn.Linear(4, 3)
    with torch.no_grad():
        h = trunk(torch.randn(BATCH, 4))
    return per_instance(head(h)), named(trunk, head)


@case
def detached_branch() -> Built:
    trunk, left, right = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(4, 3)
    h = trunk(torch.randn(BATCH, 4))
    return per_instance(left(h) - right(h.detach())), named(trunk, left, right)


@case
def straight_through_rounding() -> Built:
    first, second = nn.Linear(4, 4), nn.Linear(4, 3)
    h = first(torch.randn(BATCH, 4))
    return per_instance(second(h + (h.round() - h).detach())), named(first, second)


@case
def gradient_penalty() -> Built:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)), torch.randn(BATCH, 4)
    x.requires_grad_(True)
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return (slope.norm(dim=1) - 1).square(), named(model)


@case
def stochastic_depth_per_instance() -> Built:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    h = first(torch.randn(BATCH, 4))
    return per_instance(h + second(h) * (torch.rand(BATCH, 1) > 0.5)), named(first, second)


@case
def skip_connections_by_concatenation() -> Built:
    down, deep, up = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1), None
    up = nn.Conv2d(6, 2, 1)
    h = down(torch.randn(BATCH, 2, 4, 4)).relu()
    lower = nn.functional.interpolate(deep(nn.functional.max_pool2d(h, 2)), scale_factor=2)
    return per_instance(up(torch.cat([h, lower], 1))), named(down, deep, up)


@case
def vectorised_over_instances() -> Built:
    layer = nn.Linear(4, 3)
    params = dict(layer.named_parameters())

    def loss(x):
        return torch.func.functional_call(layer, params, x).square().sum()

    return torch.vmap(loss)(torch.randn(BATCH, 4)), named(layer)


@case
def spectrum_of_a_signal() -> Built:
    kernel = nn.Parameter(torch.randn(3, 8))
    signal = torch.fft.rfft(torch.randn(BATCH, 3, 8))
    return per_instance(torch.fft.irfft(signal * torch.fft.rfft(kernel))), [("kernel", kernel)]


@case
def long_chain_of_views() -> Built:
    first, second = nn.Linear(4, 6), nn.Linear(3, 2)
    h = first(torch.randn(BATCH, 4)).view(BATCH, 2, 3).permute(1, 0, 2).contiguous()
    h = h.transpose(0, 1).reshape(BATCH * 2, 3).unflatten(0, (BATCH, 2))
    return per_instance(second(h).narrow(1, 0, 1).squeeze(1)), named(first, second)


@case
def linear_after_flattening_the_batch_into_positions() -> Built:
    first, second = nn.Linear(4, 4), nn.Linear(4, 2)
    h = first(torch.randn(BATCH * 6, 4)).tanh()
    return per_instance(second(h).view(BATCH, 6, 2)), named(first, second)


@case
def linear_after_flattening_positions_before_the_batch() -> Built:
    first, second = nn.Linear(4, 4), nn.Linear(4, 2)
    h = first(torch.randn(6 * BATCH, 4)).tanh()
    return second(h).view(6, BATCH, 2).square().sum((0, 2)), named(first, second)


@case
def hook_that_scales_the_gradient_of_an_activation() -> Built:
    first, second = nn.Linear(4, 4), nn.Linear(4, 3)
    h = first(torch.randn(BATCH, 4))
    h.register_hook(lambda g: 0.5 * g)
    return per_instance(second(h.tanh())), named(first, second)
