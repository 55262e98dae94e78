"""The gradient noise scale: unbiased, and in a run."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from lightning_jd import backward
from lightning_jd.errors import ArgumentError, ShapeError
from lightning_jd.metrics import (
    GradientNoiseScale,
    NormQuantiles,
    gradient_noise_scale,
    noise_and_signal,
    norm_quantiles,
)


def test_both_parts_are_unbiased() -> None:
    """Over many batches of three examples, their means are the true trace and squared length."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.tensor([0.5, -0.2, 0.1, 0.0, 0.3], dtype=torch.float64)
    deviation = torch.tensor([1.0, 0.5, 2.0, 0.1, 0.3], dtype=torch.float64)
    metric = GradientNoiseScale().set_dtype(torch.float64)
    found = []
    for _ in range(4000):
        noise = torch.randn(3, 5, generator=generator, dtype=torch.float64)
        J = mean + deviation * noise
        metric.update(J @ J.T)
        found.append(torch.stack(noise_and_signal(J @ J.T)))
    parts = torch.stack(found)
    truth = torch.stack([deviation.square().sum(), mean.square().sum()])
    error = (parts.mean(dim=0) - truth) / (parts.std(dim=0) / len(parts) ** 0.5)
    assert error.abs().max() < 4
    assert_close(metric.compute(), parts.mean(dim=0)[0] / parts.mean(dim=0)[1])
    assert float(metric.compute()) == pytest.approx(float(truth[0] / truth[1]), rel=0.35)


def test_they_are_those_of_the_definition() -> None:
    J = torch.randn(4, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    noise, signal = noise_and_signal(J @ J.T)
    assert_close(noise, (J - J.mean(dim=0)).square().sum() / 3)
    assert_close(signal, J.mean(dim=0).square().sum() - noise / 4)
    expected = noise / signal if signal > 0 else torch.tensor(torch.inf)
    assert_close(gradient_noise_scale(J @ J.T), expected.double())


def test_a_gradient_that_is_lost_in_noise() -> None:
    J = torch.tensor([[1.0, 0.0], [-1.0, 0.1]])
    assert gradient_noise_scale(J @ J.T) == torch.inf
    with pytest.raises(ShapeError, match="at least two examples, got 1"):
        gradient_noise_scale(torch.ones(1, 1))


def test_norms_of_a_report() -> None:
    model = nn.Linear(3, 1)
    report = backward(model(torch.randn(9, 3)).square().flatten(), model, "mean")
    metric = NormQuantiles([0.0, 1.0])
    metric.update(report)
    norms = report.gramian.diagonal().sqrt()
    assert_close(metric.compute(), torch.stack([norms.min(), norms.max()]))
    assert_close(norm_quantiles(report.gramian, [0.5])[0], norms.median())
    for wrong in ([], [1.5]):
        with pytest.raises(ArgumentError, match="`q` must be numbers from 0 to 1"):
            NormQuantiles(wrong)
