"""float64 on the device that has it, else on the host."""

import torch

from lightning_jd.linalg import has_float64, in_float64, placed


def test_only_devices_without_float64_have_none() -> None:
    kinds = ("cpu", "cuda", "xpu", "mps")
    assert [kind for kind in kinds if not has_float64(torch.device(kind))] == ["mps"]


def test_float64_is_there_on_a_host() -> None:
    x = torch.tensor([1.5, -2.0], requires_grad=True)
    found = in_float64(x)
    assert found.dtype == torch.float64
    found.sum().backward()
    assert x.grad is not None
    assert placed(found, torch.device("cpu")) is found
