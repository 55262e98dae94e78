"""Networks with a trunk that all tasks share and a head for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from typing_extensions import override

from examples.lab.work.networks import mlp_layers
from lightning_jd.errors import UnknownNameError

Outputs = dict[str, Tensor]


class Multihead(nn.Module):
    """A trunk, and on top of its features one head per task.

    Args:
        trunk: The inputs to features, or to a list with the features of each task.
        heads: Task to head.
    """

    def __init__(self, trunk: nn.Module, heads: Mapping[str, nn.Module]) -> None:
        super().__init__()
        # Names of tasks may have dots and blanks, which names of modules must not.
        self.names = list(heads)
        self.trunk, self.heads = trunk, nn.ModuleList(heads.values())

    @override
    def forward(self, *inputs: Tensor) -> Outputs:
        features = self.trunk(*inputs)
        if not isinstance(features, list):
            features = [features] * len(self.heads)
        pairs = zip(self.names, self.heads, features, strict=True)
        return {name: head(feature) for name, head, feature in pairs}


def lenet(outputs: Mapping[str, int]) -> Multihead:
    """Two convolutions and a linear layer for 36x36 pixels, and two linear layers per task."""
    trunk = nn.Sequential(
        nn.Conv2d(1, 10, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(20 * 6 * 6, 50),
        nn.ReLU(),
    )
    return Multihead(trunk, {name: _two_layers(50, 50, n) for name, n in outputs.items()})


@dataclass(frozen=True)
class Columns:
    """The shape of a table: how many numbers, how many categorical columns, how many categories."""

    numbers: int
    categorical: int
    categories: int


class _Table(nn.Module):
    """Numbers, and an embedding of every category, side by side."""

    def __init__(self, columns: Columns, width: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(columns.categories, width)
        self.width = columns.numbers + width * columns.categorical

    @override
    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        return torch.cat([numbers, self.embedding(categories).flatten(start_dim=1)], dim=1)


class _Chain(nn.Module):
    """A module with several inputs, then others with one."""

    def __init__(self, first: nn.Module, *others: nn.Module) -> None:
        super().__init__()
        self.first, self.others = first, nn.Sequential(*others)

    @override
    def forward(self, *inputs: Tensor) -> Tensor:
        found: Tensor = self.others(self.first(*inputs))
        return found


def table_mlp(outputs: Mapping[str, int], columns: Columns) -> Multihead:
    """An MLP over a table, with two linear layers per task."""
    table = _Table(columns)
    trunk = _Chain(table, *mlp_layers([table.width, 64, 32]))
    return Multihead(trunk, {name: _two_layers(32, 16, n) for name, n in outputs.items()})


class _Experts(nn.Module):
    """Experts that all tasks share, weighted for each task by a gate of its own."""

    def __init__(self, table: _Table, experts: int, width: int, tasks: int) -> None:
        super().__init__()
        self.table = table
        self.experts = nn.ModuleList(
            nn.Sequential(*mlp_layers([table.width, width])) for _ in range(experts)
        )
        self.gates = nn.ModuleList(nn.Linear(table.width, experts) for _ in range(tasks))

    @override
    def forward(self, numbers: Tensor, categories: Tensor) -> list[Tensor]:
        x = self.table(numbers, categories)
        answers = torch.stack([expert(x) for expert in self.experts], dim=1)  # (b, experts, width)
        return [(gate(x).softmax(dim=1).unsqueeze(2) * answers).sum(dim=1) for gate in self.gates]


def mmoe(outputs: Mapping[str, int], columns: Columns) -> Multihead:
    """A multi-gate mixture of experts over a table (Ma et al., KDD 2018)."""
    trunk = _Experts(_Table(columns), experts=8, width=16, tasks=len(outputs))
    return Multihead(trunk, {name: _two_layers(16, 8, n) for name, n in outputs.items()})


class _Messages(nn.Module):
    """Atoms hear their neighbours, weighted by a learned function of the distance."""

    def __init__(self, width: int, radial: int) -> None:
        super().__init__()
        self.filter = nn.Sequential(nn.Linear(radial, width), nn.SiLU(), nn.Linear(width, width))
        self.before = nn.Linear(width, width)
        self.after = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))

    @override
    def forward(self, atoms: Tensor, radial: Tensor, pairs: Tensor) -> Tensor:
        weights, words = self.filter(radial), self.before(atoms)
        first, second = pairs
        # Both hear each other with the same weight, for their distance is the same.
        heard = torch.zeros_like(words)
        heard = heard.index_add(0, first, weights * words.index_select(0, second))
        heard = heard.index_add(0, second, weights * words.index_select(0, first))
        found: Tensor = atoms + self.after(heard)
        return found


class _Molecule(nn.Module):
    """A small message-passing network on all pairs of atoms of a molecule, each pair once."""

    def __init__(self, width: int = 32, layers: int = 2, radial: int = 16) -> None:
        super().__init__()
        self.elements = nn.Embedding(6, width, padding_idx=0)
        self.layers = nn.ModuleList(_Messages(width, radial) for _ in range(layers))
        self.readout = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.register_buffer("centres", torch.linspace(0.5, 8.0, radial))

    @override
    def forward(self, elements: Tensor, positions: Tensor) -> Tensor:
        real = elements > 0  # (b, atoms)
        molecule, i, j = (real.unsqueeze(1) & real.unsqueeze(2)).triu(1).nonzero(as_tuple=True)
        distances = (positions[molecule, i] - positions[molecule, j]).square().sum(1, keepdim=True)
        distances = distances.clamp(min=1e-12).sqrt()
        centres: Tensor = self.get_buffer("centres")
        radial = torch.exp(-2.0 * (distances - centres).square())
        number = (real.flatten().cumsum(0) - 1).view_as(real)  # of an atom among all that are real
        pairs = torch.stack([number[molecule, i], number[molecule, j]])
        atoms = self.elements(elements[real])
        for layer in self.layers:
            atoms = layer(atoms, radial, pairs)
        answers: Tensor = self.readout(atoms)
        found = answers.new_zeros(len(elements), answers.shape[1])
        found = found.index_add(0, real.nonzero()[:, 0], answers)
        return found / 10.0  # about as many atoms: features of the size of one


def molecules(outputs: Mapping[str, int]) -> Multihead:
    """A message-passing network, and two linear layers per task."""
    return Multihead(_Molecule(), {name: _two_layers(32, 32, n) for name, n in outputs.items()})


def _two_layers(inputs: int, width: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(*mlp_layers([inputs, width]), nn.Linear(width, outputs))


#: Dataset to the networks for it, by name; the first is the usual one.
NETWORKS: dict[str, tuple[str, ...]] = {
    "multimnist": ("lenet",),
    "census": ("mlp", "mmoe"),
    "qm9": ("mpnn",),
}


def multitask_network(
    name: str, outputs: Mapping[str, int], columns: Columns | None = None
) -> Multihead:
    """Build a network.

    Args:
        name: One of :data:`NETWORKS`.
        outputs: Task to the number of its outputs.
        columns: The shape of the table, for networks that take one.

    Raises:
        UnknownNameError: If there is no such network.
    """
    with_images: dict[str, Callable[[Mapping[str, int]], Multihead]] = {
        "lenet": lenet,
        "mpnn": molecules,
    }
    with_tables = {"mlp": table_mlp, "mmoe": mmoe}
    if name in with_images:
        return with_images[name](outputs)
    if name not in with_tables:
        raise UnknownNameError.of("network", name, (*with_images, *with_tables))
    assert columns is not None
    return with_tables[name](outputs, columns)
