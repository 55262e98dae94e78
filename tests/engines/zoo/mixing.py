"""Instances that look at one another, or change places: independence must be detected."""

import torch
from torch import nn

from tests.engines.zoo._registry import BATCH, Built, case, named, per_instance


def trunk() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


@case
def contrastive_losses() -> Built:
    model = trunk()
    z, y = (nn.functional.normalize(model(torch.randn(BATCH, 4)), dim=1) for _ in range(2))
    return nn.functional.cross_entropy(
        z @ y.t() / 0.5, torch.arange(BATCH), reduction="none"
    ), named(model)


@case
def triplets_within_the_batch() -> Built:
    model = trunk()
    z = model(torch.randn(BATCH, 4))
    distances = (z[:, None] - z[None]).square().sum(2)
    return distances.amax(1) - distances.mean(1), named(model)


@case
def pairs_in_one_batch_of_twice_the_size() -> Built:
    model = trunk()
    z = model(torch.randn(2 * BATCH, 4))
    return (z[:BATCH] - z[BATCH:]).square().sum(1), named(model)


@case
def pairs_side_by_side() -> Built:
    model = trunk()
    z = model(torch.randn(2 * BATCH, 4)).view(BATCH, 2, 3)
    return (z[:, 0] * z[:, 1]).sum(1), named(model)


@case
def losses_of_a_subset_of_the_batch() -> Built:
    model = trunk()
    return per_instance(model(torch.randn(2 * BATCH, 4)))[[7, 2, 3, 0, 9]], named(model)


@case
def losses_of_the_first_instances_only() -> Built:
    model = trunk()
    return per_instance(model(torch.randn(2 * BATCH, 4)))[:BATCH], named(model)


@case
def permuted_losses() -> Built:
    model = trunk()
    return per_instance(model(torch.randn(BATCH, 4)))[[3, 0, 4, 2, 1]], named(model)


@case
def flipped_and_rolled_losses() -> Built:
    model = trunk()
    return per_instance(model(torch.randn(BATCH, 4))).flip(0).roll(2), named(model)


@case
def sorted_losses() -> Built:
    model = trunk()
    return per_instance(model(torch.randn(BATCH, 4))).sort().values, named(model)


@case
def permuted_in_the_middle() -> Built:
    first, second = nn.Linear(4, 4), nn.Linear(4, 3)
    x = torch.randn(BATCH, 4)
    return per_instance(second(first(x)[[3, 0, 4, 2, 1]].tanh())), named(first, second)


@case
def duplicated_losses() -> Built:
    model = trunk()
    losses = per_instance(model(torch.randn(BATCH, 4)))
    return torch.cat([losses, losses]), named(model)


@case
def several_losses_per_instance() -> Built:
    model = trunk()
    return model(torch.randn(BATCH, 4)).square().flatten(), named(model)


@case
def losses_that_share_a_neighbour() -> Built:
    model = trunk()
    losses = per_instance(model(torch.randn(BATCH, 4)))
    return losses + 0.5 * losses.roll(1), named(model)


@case
def cumulative_losses() -> Built:
    model = trunk()
    return per_instance(model(torch.randn(BATCH, 4))).cumsum(0), named(model)


@case
def losses_minus_their_mean() -> Built:
    model = trunk()
    losses = per_instance(model(torch.randn(BATCH, 4)))
    return losses - losses.mean(), named(model)


@case
def losses_divided_by_their_sum() -> Built:
    model = trunk()
    losses = per_instance(model(torch.randn(BATCH, 4)))
    return losses / losses.sum(), named(model)


@case
def features_centred_over_the_batch() -> Built:
    first, second = nn.Linear(4, 4), nn.Linear(4, 3)
    h = first(torch.randn(BATCH, 4))
    return per_instance(second((h - h.mean(0)).tanh())), named(first, second)


@case
def softmax_over_the_batch() -> Built:
    model = trunk()
    return per_instance(model(torch.randn(BATCH, 4)).softmax(0)), named(model)


@case
def graph_convolution() -> Built:
    first, second, adjacency = nn.Linear(4, 4), nn.Linear(4, 3), torch.rand(BATCH, BATCH)
    return per_instance(second(adjacency @ first(torch.randn(BATCH, 4)))), named(first, second)


@case
def message_passing_over_edges() -> Built:
    node, edge = nn.Linear(4, 4), nn.Linear(8, 4)
    source, target = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 3]])
    h = node(torch.randn(BATCH, 4))
    messages = edge(torch.cat([h[source], h[target]], 1)).tanh()
    return per_instance(h.index_add(0, target, messages)), named(node, edge)


@case
def mixup_of_hidden_features() -> Built:
    first, second = nn.Linear(4, 4), nn.Linear(4, 3)
    h = first(torch.randn(BATCH, 4)).relu()
    return per_instance(second(0.7 * h + 0.3 * h.flip(0))), named(first, second)


@case
def mixture_of_experts_with_routing() -> Built:
    gate, experts, x = nn.Linear(4, 3), nn.ModuleList(nn.Linear(4, 4) for _ in range(3)), None
    x = torch.randn(BATCH, 4)
    weight, choice = gate(x).softmax(1).max(1)
    y = torch.zeros(BATCH, 4)
    for e, expert in enumerate(experts):
        mine = (choice == e).nonzero().flatten()
        y = y.index_add(0, mine, expert(x[mine]) * weight[mine, None])
    return per_instance(y), named(gate, experts)


@case
def mixture_of_experts_with_two_choices_of_tokens() -> Built:
    gate, experts = nn.Linear(4, 3), nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    x = torch.randn(BATCH * 2, 4)  # two tokens per instance
    weight, choice = gate(x).softmax(1).topk(2, dim=1)
    y = torch.zeros_like(x)
    for e, expert in enumerate(experts):
        token, rank = (choice == e).nonzero(as_tuple=True)
        y = y.index_put((token,), expert(x[token]) * weight[token, rank, None], accumulate=True)
    return per_instance(y.view(BATCH, 2, 4)), named(gate, experts)


@case
def branch_for_some_instances() -> Built:
    first, extra = nn.Linear(4, 4), nn.Linear(4, 4)
    h = first(torch.randn(BATCH, 4))
    chosen = torch.tensor([True, False, True, True, False])
    h = h.masked_scatter(chosen[:, None], extra(h[chosen]).tanh())
    return per_instance(h), named(first, extra)


@case
def branch_whose_size_happens_to_be_the_batch() -> Built:
    first, extra = nn.Linear(4, 4), nn.Linear(4, 2)
    h = first(torch.randn(BATCH, 4))
    y = extra(h[[0, 0, 2, 2, 4]]).square().sum(1)
    losses = per_instance(h).index_add(0, torch.tensor([0, 1, 2, 2, 4]), y)
    return losses, named(first, extra)


@case
def batch_in_the_second_dimension_of_equal_size() -> Built:
    layer = nn.Linear(4, 3)
    return layer(torch.randn(BATCH, BATCH, 4)).square().sum((0, 2)), named(layer)


@case
def batch_in_the_last_dimension() -> Built:
    mix = nn.Conv1d(4, 3, 1)
    return mix(torch.randn(1, 4, BATCH)).square().sum((0, 1)), named(mix)


@case
def features_as_rows_of_the_loss() -> Built:
    layer = nn.Linear(4, BATCH)
    return layer(torch.randn(BATCH, 4)).square().sum(0), named(layer)


@case
def batch_and_features_transposed_in_the_middle() -> Built:
    first, second = nn.Linear(BATCH, BATCH), nn.Linear(BATCH, BATCH)
    return per_instance(second(first(torch.randn(BATCH, BATCH)).t())), named(first, second)


@case
def diagonal_of_all_pairs() -> Built:
    left, right = nn.Linear(4, 3), nn.Linear(4, 3)
    scores = left(torch.randn(BATCH, 4)) @ right(torch.randn(BATCH, 4)).t()
    return scores.diagonal().square(), named(left, right)


@case
def losses_that_other_instances_reach_with_factor_zero() -> Built:
    model = trunk()
    mixer = torch.eye(BATCH)
    return mixer @ per_instance(model(torch.randn(BATCH, 4))), named(model)


@case
def layer_norm_over_the_instances() -> Built:
    norm = nn.LayerNorm(BATCH)
    return norm(torch.randn(4, BATCH)).square().sum(0), named(norm)


@case
def group_norm_whose_channels_are_the_instances() -> Built:
    norm = nn.GroupNorm(1, BATCH)
    return norm(torch.randn(3, BATCH, 4)).square().sum((0, 2)), named(norm)


@case
def instance_norm_whose_channels_are_the_instances() -> Built:
    norm = nn.InstanceNorm1d(BATCH, affine=True)
    return norm(torch.randn(3, BATCH, 4)).square().sum((0, 2)), named(norm)


@case
def batch_norm_in_evaluation_whose_channels_are_the_instances() -> Built:
    norm = nn.BatchNorm1d(BATCH).eval()
    return norm(torch.randn(3, BATCH)).square().sum(0), named(norm)


@case
def convolution_whose_channels_are_the_instances() -> Built:
    layer = nn.Conv1d(BATCH, BATCH, 2, groups=BATCH)
    return layer(torch.randn(3, BATCH, 4)).square().sum((0, 2)), named(layer)


@case
def convolution_whose_positions_are_the_instances() -> Built:
    layer = nn.Conv1d(2, 3, 3, padding=1)
    return layer(torch.randn(3, 2, BATCH)).square().sum((0, 1)), named(layer)


@case
def embedding_whose_features_are_the_instances() -> Built:
    table = nn.Embedding(7, BATCH)
    return table(torch.randint(0, 7, (4,))).square().sum(0), named(table)


@case
def prelu_whose_channels_are_the_instances() -> Built:
    layer = nn.PReLU(BATCH)
    return layer(torch.randn(3, BATCH)).square().sum(0), named(layer)


@case
def linear_whose_positions_are_the_instances() -> Built:
    first, second = nn.Linear(4, 4), nn.Linear(4, 3)
    h = second(first(torch.randn(3, BATCH, 4)).tanh())
    return h.square().sum((0, 2)), named(first, second)
