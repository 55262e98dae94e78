"""Graph networks: many graphs are one batch, joined by index."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from typing_extensions import override

from examples.lab.gallery._case import (
    Batch,
    GalleryCase,
    Specimen,
    TaskLosses,
    always,
    three_labels,
)

_NEEDS = ("torch_geometric",)
_BATCHES = 64  # more than the rounds of a benchmark: no size comes twice


def cases() -> list[GalleryCase]:
    """The models of this file."""
    return [
        GalleryCase("gcn", partial(_network, "GCN"), 32, 2.5, None, _NEEDS),
        GalleryCase("gin", partial(_network, "GIN"), 32, 2.5, None, _NEEDS),
        GalleryCase("gat", partial(_network, "GAT"), 32, 2.5, None, _NEEDS),
        GalleryCase("molecules", _molecules, 32, tasks_must=2.0),
    ]


class _Readout(nn.Module):
    """A network for nodes, the mean over each graph, and a linear layer."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, 12)

    @override
    def forward(self, x: Tensor, edges: Tensor, graph: Tensor, graphs: int) -> Tensor:
        from torch_geometric.nn import global_mean_pool

        scores: Tensor = self.head(global_mean_pool(self.body(x, edges), graph, graphs))
        return scores


def _network(kind: str, m: int) -> Specimen:
    from torch_geometric.nn import models

    body = getattr(models, kind)(16, 128, 4)
    sizes = torch.randint(10, 30, (m,)).tolist()
    batch = {**_graphs(sizes, 16), "labels": torch.randint(0, 4, (m, 3))}
    return Specimen(_Readout(body, 128), always(batch), _classes)


def _classes(model: nn.Module, batch: Batch) -> TaskLosses:
    graphs = len(batch["labels"])
    return three_labels(model(batch["x"], batch["edges"], batch["graph"], graphs), batch["labels"])


def _graphs(sizes: list[int], features: int) -> dict[str, Tensor]:
    """Rings with as many random chords as nodes; every edge in both directions."""
    edges, first = [], 0
    for size in sizes:
        ring = torch.stack([torch.arange(size), (torch.arange(size) + 1) % size])
        chords = torch.randint(0, size, (2, size // 3))
        one_way = torch.cat([ring, chords[:, chords[0] != chords[1]]], dim=1)
        edges.append(first + torch.stack([one_way, one_way.flip(0)], dim=2).flatten(1))
        first += size
    graph = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return {"x": torch.randn(first, features), "edges": torch.cat(edges, dim=1), "graph": graph}


class MessagePassing(nn.Module):
    """Directed messages between the bonds of molecules, and one output per property.

    The network of Yang et al., *Analyzing Learned Molecular Representations for Property
    Prediction* (2019), that chemprop trains: a message travels along each directed bond, and the
    sum over the bonds that arrive, without the one that comes back, is sent on.
    """

    def __init__(self, atoms: int, bonds: int, width: int, depth: int, tasks: int) -> None:
        super().__init__()
        self.start = nn.Linear(atoms + bonds, width, bias=False)
        self.message = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(atoms + width, width)
        self.body = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(width, 1) for _ in range(tasks))
        self.depth = depth

    @override
    def forward(
        self, x: Tensor, bonds: Tensor, edges: Tensor, graph: Tensor, graphs: int
    ) -> list[Tensor]:
        source, target = edges
        back = torch.arange(edges.shape[1]) ^ 1  # each bond is followed by its reverse
        first = self.start(torch.cat([x[source], bonds], dim=1))
        hidden = first.relu()
        for _ in range(self.depth - 1):
            arrived = _sums(hidden, target, len(x))
            hidden = (first + self.message(arrived[source] - hidden[back])).relu()
        atoms = self.out(torch.cat([x, _sums(hidden, target, len(x))], dim=1)).relu()
        counts = torch.bincount(graph, minlength=graphs)[:, None]
        molecules = self.body(_sums(atoms, graph, graphs) / counts)
        return [head(molecules).squeeze(1) for head in self.heads]


def _sums(values: Tensor, index: Tensor, size: int) -> Tensor:
    places = index[:, None].expand(-1, values.shape[1])
    return values.new_zeros(size, values.shape[1]).scatter_reduce(0, places, values, "sum")


def _molecules(m: int) -> Specimen:
    """Four properties of molecules; every batch has its own number of atoms and bonds."""
    batches = [_new_molecules(m, step) for step in range(_BATCHES)]
    model = MessagePassing(16, 8, 128, 3, 4)
    return Specimen(model, lambda step: batches[step % _BATCHES], _properties)


def _new_molecules(m: int, step: int) -> Batch:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(step)
        batch = _graphs(torch.randint(10, 30, (m,)).tolist(), 16)
        bonds = torch.randn(batch["edges"].shape[1], 8)
        return {**batch, "bonds": bonds, "targets": torch.randn(m, 4)}


def _properties(model: nn.Module, batch: Batch) -> TaskLosses:
    targets = batch["targets"]
    found = model(batch["x"], batch["bonds"], batch["edges"], batch["graph"], len(targets))
    return {f"property {k}": (y - targets[:, k]).square() for k, y in enumerate(found)}
