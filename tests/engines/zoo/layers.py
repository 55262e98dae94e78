"""One layer at a time, in the configurations that its rule may forget."""

import warnings

import torch
from torch import nn

from tests.engines.zoo._registry import BATCH, CASES, Built, case, named, on, per_instance

#: A layer in one line: the layer and the shape of what it gets.
CASES |= {
    "linear": lambda: on(nn.Linear(4, 3), 4),
    "linear_without_bias": lambda: on(nn.Linear(4, 3, bias=False), 4),
    "linear_on_sequences": lambda: on(
        nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), 6, 4
    ),
    "linear_on_four_dimensions": lambda: on(nn.Linear(4, 3), 2, 3, 4),
    "linear_on_long_sequences_of_few_features": lambda: on(nn.Linear(2, 3), 40, 2),
    "linear_whose_batch_equals_its_features": lambda: on(
        nn.Sequential(nn.Linear(BATCH, BATCH), nn.ELU(), nn.Linear(BATCH, BATCH)), BATCH
    ),
    "linear_on_sequences_as_long_as_the_batch": lambda: on(nn.Linear(BATCH, BATCH), BATCH, BATCH),
    "conv1d_with_stride_and_dilation": lambda: on(
        nn.Conv1d(3, 4, 3, stride=2, dilation=2, padding=3), 3, 13
    ),
    "conv1d_without_bias": lambda: on(nn.Conv1d(3, 4, 2, bias=False), 3, 7),
    "conv2d_with_stride_dilation_and_groups": lambda: on(
        nn.Conv2d(4, 6, 3, stride=(2, 1), dilation=(1, 2), groups=2, padding=(1, 2)), 4, 7, 6
    ),
    "conv2d_depthwise": lambda: on(nn.Conv2d(4, 4, 3, groups=4), 4, 5, 6),
    "conv2d_depthwise_with_multiplier": lambda: on(nn.Conv2d(3, 6, 2, groups=3, stride=2), 3, 5, 6),
    "conv2d_pointwise_with_stride": lambda: on(nn.Conv2d(4, 3, 1, stride=2), 4, 5, 5),
    "conv2d_with_rectangular_kernel_and_asymmetric_padding": lambda: on(
        nn.Conv2d(2, 3, (3, 2), padding=(0, 1)), 2, 6, 5
    ),
    "conv2d_with_circular_padding": lambda: on(
        nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), 2, 4, 5
    ),
    "conv2d_whose_output_is_one_pixel": lambda: on(nn.Conv2d(3, 4, (5, 6)), 3, 5, 6),
    "conv3d_with_groups": lambda: on(
        nn.Conv3d(2, 4, (2, 3, 2), groups=2, stride=(1, 2, 1), padding=(1, 0, 1)), 2, 3, 5, 4
    ),
    "conv_transpose1d": lambda: on(nn.ConvTranspose1d(3, 4, 3, stride=2, output_padding=1), 3, 5),
    "conv_transpose3d": lambda: on(nn.ConvTranspose3d(2, 3, 2, stride=(1, 2, 1)), 2, 2, 3, 2),
    "layer_norm": lambda: on(nn.LayerNorm(4), 3, 4),
    "layer_norm_over_two_dimensions_without_bias": lambda: on(
        nn.LayerNorm((3, 4), bias=False), 2, 3, 4
    ),
    "layer_norm_on_vectors": lambda: on(
        nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.LayerNorm(4)), 4
    ),
    "group_norm": lambda: on(nn.GroupNorm(2, 6), 6, 4, 3),
    "group_norm_on_vectors": lambda: on(nn.GroupNorm(2, 6), 6),
    "instance_norm_with_affine": lambda: on(nn.InstanceNorm2d(3, affine=True), 3, 4, 4),
    "instance_norm_with_running_statistics": lambda: on(
        nn.InstanceNorm1d(3, affine=True, track_running_stats=True), 3, 6
    ),
    "rms_norm": lambda: on(nn.RMSNorm(4), 3, 4),
    "batch_norm_in_training": lambda: on(
        nn.Sequential(nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4), nn.ReLU()), 3, 4, 4
    ),
    "batch_norm_in_training_on_vectors": lambda: on(
        nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)), 4
    ),
    "prelu_with_one_slope": lambda: on(nn.PReLU(), 3, 4),
    "prelu_per_channel": lambda: on(nn.Sequential(nn.Conv2d(3, 4, 2), nn.PReLU(4)), 3, 4, 4),
}


@case
def linear_as_first_layer_whose_input_needs_no_gradient() -> Built:
    layer = nn.Linear(4, 3)
    return per_instance(layer(torch.randn(BATCH, 4))), named(layer)


@case
def linear_on_an_expanded_input() -> Built:
    layer = nn.Linear(4, 3)
    start = nn.Parameter(torch.randn(1, 4))
    x = start.expand(BATCH, 4)
    return per_instance(layer(x) * torch.randn(BATCH, 1)), [("start", start), *named(layer)]


@case
def conv2d_same_padding_with_even_kernel() -> Built:
    with warnings.catch_warnings():  # torch pads the input itself and says so
        warnings.simplefilter("ignore")
        return on(nn.Conv2d(2, 3, (4, 2), padding="same"), 2, 6, 5)


@case
def conv2d_after_one_sided_padding() -> Built:
    layer = nn.Conv2d(2, 3, 3)
    return per_instance(layer(nn.functional.pad(torch.randn(BATCH, 2, 4, 4), (0, 2, 1, 0)))), named(
        layer
    )


@case
def conv2d_in_channels_last() -> Built:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 2))
    model = model.to(memory_format=torch.channels_last)
    x = torch.randn(BATCH, 3, 6, 6).to(memory_format=torch.channels_last)
    return per_instance(model(x)), named(model)


@case
def conv_transpose2d_with_groups_dilation_and_output_padding() -> Built:
    layer = nn.ConvTranspose2d(
        4, 6, 3, stride=(2, 3), padding=(1, 0), output_padding=(1, 2), groups=2, dilation=(2, 1)
    )
    return on(layer, 4, 3, 4)


@case
def batch_norm_in_evaluation() -> Built:
    model = nn.Sequential(nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 2))
    return on(model.eval(), 3, 4, 4)


@case
def bilinear() -> Built:
    layer, left, right = nn.Bilinear(3, 4, 2), nn.Linear(3, 3), nn.Linear(4, 4)
    output = layer(left(torch.randn(BATCH, 3)), right(torch.randn(BATCH, 4)))
    return per_instance(output), named(layer, left, right)


@case
def dropout_inside_a_module_with_parameters() -> Built:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 4), nn.Dropout1d(0.3))
    return on(model, 3, 4)


@case
def activations_of_many_kinds() -> Built:
    kinds = [nn.ReLU(), nn.GELU(), nn.SiLU(), nn.Softplus(), nn.Sigmoid(), nn.LeakyReLU(), nn.GLU()]
    return on(nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), f) for f in kinds)), 4)


@case
def pooling_and_upsampling() -> Built:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.MaxPool2d(2),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Conv2d(4, 3, 3),
        nn.AdaptiveAvgPool2d(2),
        nn.PixelShuffle(1),
        nn.Flatten(),
        nn.Linear(12, 2),
    )
    return on(model, 2, 6, 6)
