"""float64 on the device that has it, else on the host."""

import torch

from lightning_jd.linalg import has_float64, in_float64


def test_only_devices_without_float64_have_none() -> None:
    kinds = ("cpu", "cuda", "xpu", "mps")
    assert [kind for kind in kinds if not has_float64(torch.device(kind))] == ["mps"]


def test_a_tensor_is_widened_without_its_graph() -> None:
    x = torch.tensor([1.5, -2.0], requires_grad=True)
    found = in_float64(2 * x)
    assert found.dtype == torch.float64
    assert not found.requires_grad
    assert found.tolist() == [3.0, -4.0]
