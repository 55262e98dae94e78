"""Parameters inside less common operations, and contexts that all instances share."""

import torch
from torch import nn
from torch.nn.utils import parametrizations

from tests.engines.zoo._registry import BATCH, Built, Named, case, named, on, per_instance


def parameters(**shapes: tuple[int, ...]) -> Named:
    return [(name, nn.Parameter(torch.randn(shape) / 2)) for name, shape in shapes.items()]


def x(*shape: int) -> torch.Tensor:
    return torch.randn(BATCH, *(shape or (4,)))


@case
def context_of_one_row_for_all_instances() -> Built:
    layer, head = nn.Linear(4, 4), nn.Linear(4, 3)
    return per_instance(head(x() + layer(torch.randn(1, 4)).tanh())), named(layer, head)


@case
def context_of_one_vector_for_all_instances() -> Built:
    layer, head = nn.Linear(4, 4), nn.Linear(4, 3)
    return per_instance(head(x() * layer(torch.randn(4)))), named(layer, head)


@case
def as_many_prototypes_as_instances() -> Built:
    layer, prototypes = nn.Linear(4, 3), nn.Linear(4, 3)
    scores = layer(x()) @ prototypes(torch.randn(BATCH, 4)).t()
    return per_instance(scores.log_softmax(1)), named(layer, prototypes)


@case
def memory_bank_that_all_instances_attend_to() -> Built:
    query, bank = nn.Linear(4, 4), nn.Linear(4, 4)
    memory = bank(torch.randn(BATCH, 4))
    attention = (query(x(3, 4)) @ memory.t()).softmax(-1)
    return per_instance(attention @ memory), named(query, bank)


@case
def distances_to_learned_centres() -> Built:
    centres = parameters(centres=(BATCH, 4))
    return torch.cdist(x(), centres[0][1]).amin(1), centres


@case
def cosine_similarity_to_a_learned_direction() -> Built:
    direction = parameters(direction=(4,))
    return nn.functional.cosine_similarity(x(), direction[0][1]), direction


@case
def learned_exponents() -> Built:
    pair = parameters(power=(4,), base=(4,))
    power, base = (p for _, p in pair)
    return per_instance(x().abs() ** power.exp() + base.exp() ** x()), pair


@case
def learned_interpolation() -> Built:
    pair = parameters(weight=(4,), end=(4,))
    weight, end = (p for _, p in pair)
    return per_instance(torch.lerp(x(), end.expand(BATCH, 4), weight.sigmoid())), pair


@case
def fused_products() -> Built:
    found = parameters(a=(4,), b=(4,), matrix=(BATCH, 4, 3), vector=(4,), row=(3,))
    a, b, matrix, vector, row = (p for _, p in found)
    y = torch.addcmul(a, x(), b, value=0.5) + torch.addcdiv(b, x(), a.exp())
    y = torch.baddbmm(row, y.unsqueeze(1), matrix, beta=0.3).squeeze(1)
    return per_instance(y) + torch.addmv(torch.zeros(BATCH), x(), vector), found


@case
def tensordot_and_outer_product() -> Built:
    found = parameters(core=(4, 2, 3), left=(2,), right=(3,))
    core, left, right = (p for _, p in found)
    y = torch.tensordot(x(), core + torch.outer(left, right), dims=1)
    return per_instance(y.tanh()), found


@case
def linear_system_with_a_learned_matrix() -> Built:
    found = parameters(matrix=(4, 4))
    matrix = found[0][1] + 3 * torch.eye(4)
    return per_instance(torch.linalg.solve(matrix, x().t()).t()), found


@case
def orthogonal_weight() -> Built:
    return on(parametrizations.orthogonal(nn.Linear(4, 4)), 4)


@case
def weight_assembled_from_pieces() -> Built:
    found = parameters(top=(2, 4), bottom=(1, 4), gate=(3, 4), other=(3, 4))
    top, bottom, gate, other = (p for _, p in found)
    weight = torch.where(gate > 0, torch.cat([top, bottom]), other.clamp(-0.5, 0.5))
    return per_instance(nn.functional.linear(x(), weight, weight.mean(1))), found


@case
def one_parameter_concatenated_with_itself() -> Built:
    found = parameters(half=(2, 4))
    half = found[0][1]
    return per_instance(nn.functional.linear(x(), torch.cat([half, half.flip(0)]))), found


@case
def scaled_embedding_table() -> Built:
    found = parameters(table=(7, 4), scale=(4,))
    table, scale = (p for _, p in found)
    words = torch.randint(0, 7, (BATCH, 3))
    return per_instance(nn.functional.embedding(words, table * scale)), found


@case
def convolution_by_unfolding() -> Built:
    layer = nn.Linear(2 * 2 * 2, 3)
    patches = nn.functional.unfold(torch.randn(BATCH, 2, 4, 4), 2)
    return per_instance(layer(patches.transpose(1, 2))), named(layer)


@case
def convolution_with_a_kernel_per_instance() -> Built:
    writer, images = nn.Linear(4, 9), torch.randn(1, BATCH, 5, 5)
    kernels = writer(x()).view(BATCH, 1, 3, 3)
    output = nn.functional.conv2d(images, kernels, groups=BATCH)
    return per_instance(output.squeeze(0)), named(writer)


@case
def squeeze_and_excitation() -> Built:
    conv, gate = nn.Conv2d(2, 4, 2), nn.Linear(4, 4)
    h = conv(torch.randn(BATCH, 2, 4, 4))
    return per_instance(h * gate(h.mean((2, 3))).sigmoid()[..., None, None]), named(conv, gate)


@case
def learned_step_of_an_inner_loop() -> Built:
    layer, rate = nn.Linear(4, 3), nn.Parameter(torch.tensor(0.1))
    inner = per_instance(layer(x())).mean()
    slope = torch.autograd.grad(inner, layer.weight, create_graph=True)[0]
    output = nn.functional.linear(x(), layer.weight - rate * slope, layer.bias)
    return per_instance(output), [*named(layer), ("rate", rate)]


@case
def iterations_with_shared_weights() -> Built:
    layer, state = nn.Linear(8, 4), torch.zeros(BATCH, 4)
    data = x()
    for _ in range(4):
        state = layer(torch.cat([state, data], 1)).tanh()
    return per_instance(state), named(layer)


@case
def each_instance_takes_its_own_path() -> Built:
    small, large = nn.Linear(4, 2), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    losses = [(small if i % 2 else large)(row).square().sum() for i, row in enumerate(x())]
    return torch.stack(losses), named(small, large)


@case
def gradient_stopped_for_some_instances() -> Built:
    first, second = nn.Linear(4, 4), nn.Linear(4, 3)
    h = first(x())
    chosen = torch.tensor([True, False, True, False, True])[:, None]
    return per_instance(second(torch.where(chosen, h, h.detach()))), named(first, second)


@case
def losses_weighted_by_detached_neighbours() -> Built:
    layer = nn.Linear(4, 3)
    losses = per_instance(layer(x()))
    return losses * losses.detach().roll(1) + losses.mean().detach(), named(layer)


@case
def temperature_from_the_mean_of_the_batch() -> Built:
    layer, gauge = nn.Linear(4, 3), nn.Linear(3, 1)
    h = layer(x())
    return per_instance(h / gauge(h.mean(0)).exp()), named(layer, gauge)


@case
def halves_of_the_batch_recombined() -> Built:
    first, second = nn.Linear(4, 4), nn.Linear(4, 3)
    a, b = first(x()).split([2, 3])
    return per_instance(second(torch.cat([a.tanh(), b.sin()]))), named(first, second)


@case
def halves_of_the_batch_exchanged() -> Built:
    first, second = nn.Linear(4, 4), nn.Linear(4, 3)
    a, b = first(x()).split([2, 3])
    return per_instance(second(torch.cat([b, a]).tanh())), named(first, second)


@case
def views_of_each_instance_averaged() -> Built:
    layer = nn.Conv1d(2, 3, 2)
    views = torch.randn(BATCH, BATCH, 2, 4)  # as many views as instances
    output = layer(views.transpose(0, 1).flatten(0, 1)).view(BATCH, BATCH, -1)
    return per_instance(output.mean(0)), named(layer)


@case
def gathered_along_the_batch() -> Built:
    layer = nn.Linear(4, 4)
    partner = torch.tensor([1, 1, 3, 0, 4])[:, None].expand(BATCH, 4)
    return per_instance(layer(x()).gather(0, partner).tanh()), named(layer)
