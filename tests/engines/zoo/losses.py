"""Losses and outputs of every shape, and how many there are."""

import torch
from torch import nn

from tests.engines.zoo._registry import BATCH, Built, case, named, per_instance


@case
def output_without_dimensions() -> Built:
    layer = nn.Linear(4, 1)
    return layer(torch.randn(4)).square().sum(), named(layer)


@case
def output_with_one_dimension() -> Built:
    layer = nn.Linear(4, 1)
    return layer(torch.randn(BATCH, 4)).squeeze(1).square(), named(layer)


@case
def output_with_three_dimensions() -> Built:
    layer = nn.Conv1d(2, 3, 2)
    return per_instance(layer(torch.randn(BATCH, 2, 5))), named(layer)


@case
def output_with_four_dimensions() -> Built:
    layer = nn.Conv2d(2, 3, 2)
    output = layer(torch.randn(BATCH, 2, 5, 4))
    target = torch.randint(0, 3, (BATCH, 4, 3))
    return nn.functional.cross_entropy(output, target, reduction="none").mean((1, 2)), named(layer)


@case
def output_of_the_layer_is_the_loss() -> Built:
    layer = nn.Linear(4, 1)
    return layer(torch.randn(BATCH, 4)).squeeze(1), named(layer)


@case
def one_objective() -> Built:
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(27, 2))
    return per_instance(model(torch.randn(1, 2, 4, 4))), named(model)


@case
def one_objective_of_a_whole_batch() -> Built:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    return per_instance(model(torch.randn(BATCH, 4))).mean(), named(model)


@case
def one_objective_without_a_batch_dimension() -> Built:
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Conv2d(3, 1, 2))
    return model(torch.randn(2, 4, 4)).square().sum().reshape(1), named(model)


@case
def more_objectives_than_parameters() -> Built:
    layer = nn.Linear(2, 1)
    return per_instance(layer(torch.randn(12, 2))), named(layer)


@case
def cross_entropy_of_classes() -> Built:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    target = torch.randint(0, 3, (BATCH,))
    return nn.functional.cross_entropy(
        model(torch.randn(BATCH, 4)), target, reduction="none"
    ), named(model)


@case
def a_loss_that_is_constant_for_one_instance() -> Built:
    layer = nn.Linear(4, 3)
    keep = torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0])
    return per_instance(layer(torch.randn(BATCH, 4))) * keep, named(layer)


@case
def gradients_of_very_different_size() -> Built:
    layer = nn.Linear(4, 3)
    sizes = torch.tensor([1e-4, 1.0, 1e4, 1.0, 1e-2])
    return per_instance(layer(torch.randn(BATCH, 4))) * sizes, named(layer)


@case
def losses_concatenated_from_two_batches() -> Built:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    halves = [per_instance(model(torch.randn(b, 4))) for b in (2, 3)]
    return torch.cat(halves), named(model)


@case
def losses_stacked_from_single_instances() -> Built:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    return torch.stack([model(x).square().sum() for x in torch.randn(BATCH, 4)]), named(model)


@case
def instances_and_tasks() -> Built:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    return model(torch.randn(BATCH, 4)).square(), named(model)


@case
def instances_and_tasks_with_convolutions_and_heads() -> Built:
    trunk = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten())
    heads = nn.ModuleList(nn.Linear(12, 2) for _ in range(3))
    h = trunk(torch.randn(BATCH, 2, 4, 4))
    return torch.stack([per_instance(head(h)) for head in heads], 1), named(trunk, heads)


@case
def instances_and_tasks_that_mix_instances() -> Built:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    return model(torch.randn(BATCH, 4)).square(), named(model)


@case
def instances_and_one_task() -> Built:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    return model(torch.randn(BATCH, 4)).square(), named(model)


@case
def one_instance_and_several_tasks() -> Built:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    return model(torch.randn(1, 4)).square(), named(model)
