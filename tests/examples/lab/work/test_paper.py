"""The networks of the paper: layers, sizes and numbers of parameters."""

import pytest
import torch
from torch import nn

from examples.lab.work.paper import ARCHITECTURES, EPOCHS, INPUT_SHAPES, paper_cnn
from lightning_jd.errors import UnknownNameError

# Weights plus biases, layer by layer, from the tables of the paper's appendix.
PARAMETERS = {
    "svhn": (27 * 16 + 16) + (9 * 32 + 32) + (9 * 32 + 32) + (512 * 64 + 64) + (64 * 10 + 10),
    "cifar10": (27 * 32 + 32) + 2 * (9 * 64 + 64) + (1024 * 128 + 128) + (128 * 10 + 10),
    "eurosat": (27 * 32 + 32) + 2 * (9 * 64 + 64) + (1024 * 128 + 128) + (128 * 10 + 10),
    "mnist": 320 + (288 * 64 + 64) + (576 * 64 + 64) + (576 * 128 + 128) + (128 * 10 + 10),
}


@pytest.mark.parametrize("name", INPUT_SHAPES)
def test_a_network_takes_its_images_and_has_the_papers_parameters(name: str) -> None:
    model = paper_cnn(name)
    assert model(torch.zeros(2, *INPUT_SHAPES[name])).shape == (2, 10)
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]
    assert sum(isinstance(layer, nn.ELU) for layer in model) == 4


def test_every_dataset_has_a_network_and_its_epochs() -> None:
    assert set(ARCHITECTURES) == set(EPOCHS)
    assert set(ARCHITECTURES.values()) == set(INPUT_SHAPES)
    assert {32 * epochs for epochs in EPOCHS.values()} == {800, 640, 960, 256, 320}


def test_an_unknown_network_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"`name` must be one of 'cifar10'.*got 'resnet'"):
        paper_cnn("resnet")
