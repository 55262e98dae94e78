"""Tables and events: transformers over columns, experts, factorisation, scores of pairs."""

from __future__ import annotations

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
    three_labels,
)

_NUMBERS, _CATEGORIES = 6, (5, 8, 13, 4)


def cases() -> list[GalleryCase]:
    """The models of this file."""
    return [
        GalleryCase("ft-transformer", _ft),
        GalleryCase("sparse-experts", _experts),
        GalleryCase("recommender", _recommender),
    ]


class _FTTransformer(nn.Module):
    """Every column is a token (Gorishniy et al., 2021)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(_NUMBERS, width) * 0.3)
        self.shift = nn.Parameter(torch.randn(_NUMBERS, width) * 0.3)
        self.tables = nn.ModuleList(nn.Embedding(count, width) for count in _CATEGORIES)
        self.summary = nn.Parameter(torch.randn(1, 1, width) * 0.3)
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, 12))

    @override
    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        tokens = [self.summary.expand(len(numbers), -1, -1)]
        tokens.append(numbers[:, :, None] * self.scale + self.shift)
        tokens += [table(categories[:, k : k + 1]) for k, table in enumerate(self.tables)]
        scores: Tensor = self.head(self.body(torch.cat(tokens, dim=1))[:, 0])
        return scores


def _columns(m: int) -> dict[str, Tensor]:
    categories = torch.stack([torch.randint(0, count, (m,)) for count in _CATEGORIES], dim=1)
    return {
        "numbers": torch.randn(m, _NUMBERS),
        "categories": categories,
        "labels": torch.randint(0, 4, (m, 3)),
    }


def _ft(m: int) -> Specimen:
    return Specimen(_FTTransformer(128), always(_columns(m)), _classes)


def _classes(model: nn.Module, batch: Batch) -> TaskLosses:
    return three_labels(model(batch["numbers"], batch["categories"]), batch["labels"])


class _SparseExperts(nn.Module):
    """Each token goes to its two best of four experts; what comes back is added by index."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lift = nn.Linear(8, width)
        self.router = nn.Linear(width, 4, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
            for _ in range(4)
        )
        self.head = nn.Linear(width, 12)

    @override
    def forward(self, x: Tensor) -> Tensor:
        tokens = self.lift(x)
        flat = tokens.flatten(0, 1)
        shares, chosen = self.router(flat).softmax(dim=1).topk(2, dim=1)
        mixed = torch.zeros_like(flat)
        for k, expert in enumerate(self.experts):
            token, place = torch.where(chosen == k)
            answer = expert(flat[token]) * shares[token, place, None]
            mixed = mixed.index_add(0, token, answer)
        scores: Tensor = self.head((tokens + mixed.view_as(tokens)).mean(dim=1))
        return scores


def _experts(m: int) -> Specimen:
    batch = {"x": torch.randn(m, 16, 8), "labels": torch.randint(0, 4, (m, 3))}
    model = _SparseExperts(128)
    return Specimen(model, always(batch), lambda net, b: three_labels(net(b["x"]), b["labels"]))


class _Recommender(nn.Module):
    """Bags of embeddings of what a user has bought, and the item that is offered."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.users = nn.Embedding(50, width)
        self.bought = nn.EmbeddingBag(80, width, mode="mean")
        self.items = nn.Embedding(80, width)
        layers = nn.Linear(3 * width, 64), nn.PReLU(), nn.Linear(64, 2)
        self.deep = nn.Sequential(*layers)

    @override
    def forward(self, user: Tensor, history: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
        parts = [self.users(user), self.bought(history), self.items(item)]
        match = (parts[0] * parts[2]).sum(dim=1)
        return match, self.deep(torch.cat(parts, dim=1))


def _recommender(m: int) -> Specimen:
    batch = {
        "user": torch.randint(0, 50, (m,)),
        "history": torch.randint(0, 80, (m, 7)),
        "item": torch.randint(0, 80, (m,)),
        "y": torch.randint(0, 2, (m, 3)).float(),
    }
    return Specimen(_Recommender(32), always(batch), _events)


def _events(model: nn.Module, batch: Batch) -> TaskLosses:
    match, deep = model(batch["user"], batch["history"], batch["item"])
    y, scores = batch["y"], {"click": match, "like": deep[:, 0], "buy": deep[:, 1]}
    return {
        name: F.binary_cross_entropy_with_logits(score, y[:, k], reduction="none")
        for k, (name, score) in enumerate(scores.items())
    }
