"""Parameters that are used twice, elsewhere, raw, or in disguise."""

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrizations

from tests.engines.zoo._registry import BATCH, Built, case, named, on, per_instance


@case
def module_called_twice() -> Built:
    layer = nn.Linear(4, 4)
    x = torch.randn(BATCH, 4)
    return per_instance(layer(layer(x).tanh()) + layer(x)), named(layer)


@case
def convolution_called_at_three_resolutions() -> Built:
    layer, x = nn.Conv2d(3, 3, 3, padding=1), torch.randn(BATCH, 3, 8, 8)
    pyramid = [
        layer(nn.functional.avg_pool2d(x, size)).flatten(1).square().sum(1) for size in (1, 2, 4)
    ]
    return sum(pyramid), named(layer)


@case
def convolution_called_twice_at_one_resolution() -> Built:
    layer = nn.Conv2d(3, 3, 3, padding=1)
    return per_instance(layer(layer(torch.randn(BATCH, 3, 5, 5)).tanh())), named(layer)


@case
def norm_called_twice() -> Built:
    norm, layer = nn.LayerNorm(4), nn.Linear(4, 4)
    return per_instance(norm(layer(norm(torch.randn(BATCH, 3, 4))))), named(norm, layer)


@case
def embedding_called_twice() -> Built:
    table = nn.Embedding(7, 4)
    first, second = torch.randint(0, 7, (2, BATCH, 3))
    return per_instance(table(first).tanh() * table(second)), named(table)


@case
def two_modules_that_share_a_weight() -> Built:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    return per_instance(second(first(torch.randn(BATCH, 4)).relu())), named(first, second)


@case
def bias_shared_by_a_linear_layer_and_a_norm() -> Built:
    layer, norm = nn.Linear(4, 4), nn.LayerNorm(4)
    norm.bias = layer.bias
    return per_instance(norm(layer(torch.randn(BATCH, 4)))), named(layer, norm)


@case
def tied_embedding_and_head() -> Built:
    table, head = nn.Embedding(7, 4), nn.Linear(4, 7)
    head.weight = table.weight
    words = torch.randint(0, 7, (BATCH, 3))
    scores = head(table(words).tanh())
    losses = nn.functional.cross_entropy(
        scores.transpose(1, 2), words.roll(1, 1), reduction="none"
    ).mean(1)
    return losses, named(table, head)


@case
def autoencoder_with_transposed_weight() -> Built:
    weight = nn.Parameter(torch.randn(3, 4))
    x = torch.randn(BATCH, 4)
    code = nn.functional.linear(x, weight).tanh()
    return per_instance(nn.functional.linear(code, weight.t()) - x), [("weight", weight)]


@case
def functional_use_of_the_weight_of_a_child() -> Built:
    layer, x = nn.Linear(4, 3), torch.randn(BATCH, 4)
    extra = nn.functional.linear(x.cos(), layer.weight * 2, layer.bias)
    return per_instance(layer(x) + extra), named(layer)


@case
def weight_in_a_product_and_in_a_layer() -> Built:
    layer, x = nn.Linear(4, 4, bias=False), torch.randn(BATCH, 4)
    return per_instance(layer(x) * layer.weight[0] + layer.weight.sum()), named(layer)


@case
def stateless_call_with_scaled_parameters() -> Built:
    layer = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    scaled = {name: p * 1.5 for name, p in layer.named_parameters()}
    return per_instance(functional_call(layer, scaled, torch.randn(BATCH, 3, 4))), named(layer)


@case
def positional_embedding_and_class_token() -> Built:
    layer = nn.Linear(4, 4)
    position, token = nn.Parameter(torch.randn(1, 4, 4)), nn.Parameter(torch.randn(1, 1, 4))
    x = torch.cat([token.expand(BATCH, -1, -1), torch.randn(BATCH, 3, 4)], 1) + position
    raw = [("position", position), ("token", token)]
    return per_instance(layer(x)[:, 0]), raw + named(layer)


@case
def class_token_by_repeat() -> Built:
    token, layer = nn.Parameter(torch.randn(1, 2, 4)), nn.Linear(4, 4)
    return per_instance(layer(token.repeat(BATCH, 1, 1) * torch.randn(BATCH, 1, 1))), [
        ("token", token),
        *named(layer),
    ]


@case
def raw_scale_and_shift() -> Built:
    scale, shift = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(3, 1))
    x = torch.randn(BATCH, 3, 4)
    return per_instance((scale * x - shift * 2).tanh()), [("scale", scale), ("shift", shift)]


@case
def raw_scalars() -> Built:
    temperature, bias = nn.Parameter(torch.tensor(0.7)), nn.Parameter(torch.tensor([0.2]))
    layer = nn.Linear(4, 3)
    output = layer(torch.randn(BATCH, 4)) / temperature + bias
    return per_instance(output), [("temperature", temperature), ("bias", bias), *named(layer)]


@case
def raw_subtraction_and_division() -> Built:
    a, b = nn.Parameter(torch.randn(4)), nn.Parameter(torch.rand(4) + 1)
    x = torch.randn(BATCH, 4)
    return per_instance((a - x) / b + (x - a) ** 2), [("a", a), ("b", b)]


@case
def raw_matrix_product() -> Built:
    first, second = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3, 2))
    output = (torch.randn(BATCH, 6, 4) @ first).tanh() @ second
    return per_instance(output), [("first", first), ("second", second)]


@case
def raw_matrix_on_the_left() -> Built:
    mix, x = nn.Parameter(torch.randn(3, 6)), torch.randn(BATCH, 6, 4)
    return per_instance(mix @ x), [("mix", mix)]


@case
def raw_einsum() -> Built:
    weight = nn.Parameter(torch.randn(2, 4, 3))
    output = torch.einsum("btc,hcd->bhtd", torch.randn(BATCH, 6, 4), weight)
    return per_instance(output.tanh()), [("weight", weight)]


@case
def raw_vector_product() -> Built:
    w, x = nn.Parameter(torch.randn(4)), torch.randn(BATCH, 4)
    return (x @ w).square() + torch.mv(x, w), [("w", w)]


@case
def raw_addmm_with_factors() -> Built:
    w, b, x = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3)), torch.randn(BATCH, 4)
    return per_instance(torch.addmm(b, x, w, beta=0.5, alpha=-2.0)), [("w", w), ("b", b)]


@case
def raw_batched_product() -> Built:
    experts, x = nn.Parameter(torch.randn(3, 4, 2)), torch.randn(3, BATCH, 4)
    return per_instance(torch.bmm(x, experts).transpose(0, 1)), [("experts", experts)]


@case
def parameter_with_one_row_per_instance() -> Built:
    codes, layer = nn.Parameter(torch.randn(BATCH, 4)), nn.Linear(4, 3)
    x = torch.randn(BATCH, 4)
    return per_instance(layer(codes + x * codes)), [("codes", codes), *named(layer)]


@case
def parameter_rows_looked_up_by_index() -> Built:
    codes = nn.Parameter(torch.randn(8, 4))
    return per_instance(codes[torch.tensor([1, 7, 1, 0, 3])].tanh()), [("codes", codes)]


@case
def slices_of_one_parameter() -> Built:
    weight, x = nn.Parameter(torch.randn(6, 4)), torch.randn(BATCH, 4)
    return per_instance(x @ weight[:3].t() + nn.functional.linear(x, weight[3:])), [
        ("weight", weight)
    ]


@case
def parameter_reshaped_before_use() -> Built:
    flat, x = nn.Parameter(torch.randn(12)), torch.randn(BATCH, 4)
    return per_instance(nn.functional.linear(x, flat.view(3, 4)) + flat[:3]), [("flat", flat)]


@case
def parameter_cast_before_use() -> Built:
    weight, x = nn.Parameter(torch.randn(3, 4)), torch.randn(BATCH, 4, dtype=torch.float64)
    output = nn.functional.linear(x, weight.to(torch.float64))
    return output.square().sum(1), [("weight", weight)]


@case
def weight_norm() -> Built:
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 3)), nn.Tanh(), nn.Linear(3, 2))
    return on(model, 4)


@case
def spectral_norm_of_a_convolution() -> Built:
    return on(parametrizations.spectral_norm(nn.Conv2d(2, 3, 2)), 2, 4, 4)


@case
def standardised_weight() -> Built:
    layer, x = nn.Conv2d(2, 3, 2), torch.randn(BATCH, 2, 4, 4)
    weight = layer.weight - layer.weight.mean((1, 2, 3), keepdim=True)
    return per_instance(nn.functional.conv2d(x, weight / weight.std(), layer.bias)), named(layer)


@case
def low_rank_adapter_on_a_frozen_layer() -> Built:
    layer = nn.Linear(4, 4).requires_grad_(False)
    down, up = nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False)
    x = torch.randn(BATCH, 3, 4)
    return per_instance(layer(x) + up(down(x))), named(down, up)


@case
def low_rank_adapter_merged_into_the_weight() -> Built:
    layer = nn.Linear(4, 4).requires_grad_(False)
    down, up = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.randn(4, 2))
    output = nn.functional.linear(torch.randn(BATCH, 3, 4), layer.weight + up @ down)
    return per_instance(output), [("down", down), ("up", up)]


@case
def hypernetwork_that_writes_a_weight_per_instance() -> Built:
    writer, x = nn.Linear(2, 12), torch.randn(BATCH, 1, 4)
    weights = writer(torch.randn(BATCH, 2)).view(BATCH, 4, 3)
    return per_instance(torch.bmm(x, weights)), named(writer)


@case
def hypernetwork_that_writes_one_weight() -> Built:
    writer = nn.Linear(2, 12)
    weight = writer(torch.randn(2)).view(3, 4)
    return per_instance(nn.functional.linear(torch.randn(BATCH, 4), weight)), named(writer)


@case
def penalty_on_the_weights_in_every_loss() -> Built:
    layer = nn.Linear(4, 3)
    losses = per_instance(layer(torch.randn(BATCH, 4)))
    return losses + 0.1 * layer.weight.square().sum(), named(layer)
