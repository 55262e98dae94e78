"""Tiny images, as files of MNIST's format and in memory."""

import struct
from pathlib import Path

import pytest
import torch


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(40) % 10
    images = torch.randint(0, 50, (40, 28, 28), generator=generator)
    images[torch.arange(40), labels] += 200  # the label is the bright line
    for name, entries in (("images-idx3", images), ("labels-idx1", labels)):
        header = bytes([0, 0, 8, entries.ndim]) + struct.pack(f">{entries.ndim}I", *entries.shape)
        body = bytes(entries.flatten().tolist())
        (tmp_path / f"train-{name}-ubyte").write_bytes(header + body)
    return tmp_path


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """Files of MNIST's format: 60 training and 20 test images, of which one pixel is the label."""
    for part, n in (("train", 60), ("t10k", 20)):
        labels = torch.arange(n) % 10
        images = torch.zeros(n, 28, 28, dtype=torch.uint8)
        images[torch.arange(n), labels, 0] = 255
        for name, entries in (("images-idx3", images), ("labels-idx1", labels)):
            shape = struct.pack(f">{entries.ndim}I", *entries.shape)
            header = bytes([0, 0, 8, entries.ndim]) + shape
            body = bytes(entries.flatten().tolist())
            (tmp_path / f"{part}-{name}-ubyte").write_bytes(header + body)
    return tmp_path


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(16, 1, 28, 28, generator=generator), torch.arange(16) % 10
