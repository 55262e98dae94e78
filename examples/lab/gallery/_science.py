"""Networks of scientific computing and statistics: operators, differential equations, flows."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from examples.lab.gallery._case import (
    Batch,
    GalleryCase,
    Specimen,
    TaskLosses,
    always,
    three_targets,
)


def cases() -> list[GalleryCase]:
    """The models of this file."""
    return [
        GalleryCase("fourier-operator", _fourier),
        GalleryCase("neural-ode-adjoint", _adjoint, requires=("torchdiffeq",)),
        GalleryCase("normalising-flow", _flow),
        GalleryCase("vae", _vae),
        GalleryCase("physics-informed", _burgers),
    ]


class _SpectralConvolution(nn.Module):
    """Multiplies the lowest frequencies by complex weights (Li et al., 2021)."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        weight = torch.randn(width, width, modes, dtype=torch.cfloat) / width
        self.weight, self.modes = nn.Parameter(weight), modes

    @override
    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x)[..., : self.modes]
        mixed = torch.einsum("bik,iok->bok", spectrum, self.weight)
        y: Tensor = torch.fft.irfft(mixed, n=x.shape[-1])
        return y


class _FourierOperator(nn.Module):
    """Three spectral layers with pointwise ones beside."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.lift = nn.Conv1d(1, width, 1)
        self.spectral = nn.ModuleList(_SpectralConvolution(width, modes) for _ in range(3))
        self.pointwise = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(3))
        self.project = nn.Sequential(nn.Conv1d(width, 64, 1), nn.GELU(), nn.Conv1d(64, 1, 1))

    @override
    def forward(self, x: Tensor) -> Tensor:
        x = self.lift(x[:, None])
        for spectral, pointwise in zip(self.spectral, self.pointwise, strict=True):
            x = F.gelu(spectral(x) + pointwise(x))
        solution: Tensor = self.project(x)
        return solution.squeeze(1)


def _fourier(m: int) -> Specimen:
    batch = {"x": torch.randn(m, 63), "y": torch.randn(m, 63)}
    model = _FourierOperator(32, 12)
    return Specimen(model, always(batch), lambda net, b: three_targets(net(b["x"]), b["y"]))


class _Field(nn.Module):
    """The right-hand side of the differential equation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 6))

    @override
    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        derivative: Tensor = self.net(y)
        return derivative


def _adjoint(m: int) -> Specimen:
    batch = {"x": torch.randn(m, 6), "y": torch.randn(m, 6), "t": torch.linspace(0, 1, 4)}
    return Specimen(_Field(32), always(batch), _integrated)


def _integrated(model: nn.Module, batch: Batch) -> TaskLosses:
    from torchdiffeq import odeint_adjoint

    # Fixed steps: an adaptive solver chooses them for the whole batch, and so mixes the instances.
    path = odeint_adjoint(model, batch["x"], batch["t"], method="rk4")
    return {f"time {k}": (path[k] - batch["y"]).square().mean(dim=1) for k in range(1, len(path))}


class _Coupling(nn.Module):
    """Shifts and scales one half by what a network makes of the other (Dinh et al., 2017)."""

    def __init__(self, size: int, width: int, swapped: bool) -> None:
        super().__init__()
        half = size // 2
        layers = nn.Linear(half, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        self.net = nn.Sequential(*layers, nn.Linear(width, 2 * half))
        self.swapped = swapped

    @override
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        kept, moved = x.chunk(2, dim=1)[:: -1 if self.swapped else 1]
        scale, shift = self.net(kept).chunk(2, dim=1)
        scale = scale.tanh()
        both = [kept, moved * scale.exp() + shift]
        return torch.cat(both[:: -1 if self.swapped else 1], dim=1), scale.sum(dim=1)


class _Flow(nn.Module):
    """Coupling layers with a learned diagonal (ActNorm) between."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.couplings = nn.ModuleList(_Coupling(size, 128, k % 2 == 1) for k in range(6))
        self.scales = nn.ParameterList(0.1 * torch.randn(size) for _ in range(6))

    @override
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = x.new_zeros(len(x))
        for coupling, scale in zip(self.couplings, self.scales, strict=True):
            x, change = coupling(x * scale.exp())
            total = total + change + scale.sum()
        return x, total


def _flow(m: int) -> Specimen:
    return Specimen(_Flow(12), always({"x": torch.randn(m, 12)}), _likelihood)


def _likelihood(model: nn.Module, batch: Batch) -> TaskLosses:
    z, volume = model(batch["x"])
    return {
        "prior": 0.5 * (z.square() + math.log(2 * math.pi)).sum(dim=1),
        "volume": -volume,
        "tails": z.pow(4).mean(dim=1),
    }


class _Autoencoder(nn.Module):
    """A variational autoencoder whose noise comes with the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 16, 4, 2, 1), nn.SiLU(), nn.Flatten(), nn.Linear(16 * 64, 2 * 8)
        )
        self.decoder = nn.Sequential(
            nn.Linear(8, 16 * 64),
            nn.SiLU(),
            nn.Unflatten(1, (16, 8, 8)),
            nn.ConvTranspose2d(16, 1, 4, 2, 1),
        )

    @override
    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.encoder(x).chunk(2, dim=1)
        return self.decoder(mean + noise * (0.5 * spread).exp()), mean, spread


def _vae(m: int) -> Specimen:
    batch = {"x": torch.rand(m, 1, 16, 16), "noise": torch.randn(m, 8)}
    return Specimen(_Autoencoder(), always(batch), _evidence)


def _evidence(model: nn.Module, batch: Batch) -> TaskLosses:
    found, mean, spread = model(batch["x"], batch["noise"])
    return {
        "pixels": (found - batch["x"]).square().mean(dim=(1, 2, 3)),
        "divergence": 0.5 * (mean.square() + spread.exp() - 1 - spread).mean(dim=1),
        "edges": (found - batch["x"]).diff(dim=3).abs().mean(dim=(1, 2, 3)),
    }


def _burgers(m: int) -> Specimen:
    model = nn.Sequential(
        nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)
    )
    batch = {name: torch.rand(m, 2) for name in ("inside", "start", "edge")}
    return Specimen(model, always(batch), _residuals)


def _residuals(model: nn.Module, batch: Batch) -> TaskLosses:
    """Burgers' equation: the losses hold derivatives of the network by its input."""
    point = batch["inside"].requires_grad_()
    u = model(point)
    slope = torch.autograd.grad(u.sum(), point, create_graph=True)[0]
    bend = torch.autograd.grad(slope[:, 0].sum(), point, create_graph=True)[0][:, 0]
    equation = slope[:, 1] + u[:, 0] * slope[:, 0] - 0.01 * bend
    start, edge = model(batch["start"])[:, 0], model(batch["edge"])[:, 0]
    wanted = -torch.sin(math.pi * batch["start"][:, 0])
    return {
        "equation": equation.square(),
        "start": (start - wanted).square(),
        "boundary": edge.square(),
    }
