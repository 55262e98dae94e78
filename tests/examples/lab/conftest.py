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
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(16, 1, 28, 28, generator=generator), torch.arange(16) % 10
