"""A language model of the size of GPT-2 small, in plain PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from examples.lab.work.networks import Work


@dataclass(frozen=True)
class LanguageWork(Work):
    """A language model and its sequences: one objective per sequence."""

    @override
    def losses(self, model: nn.Module | None = None) -> Tensor:
        scores = (model or self.model)(self.x)
        pairs = scores.flatten(0, 1), self.y.flatten()
        losses = functional.cross_entropy(*pairs, reduction="none")
        return losses.view_as(self.y).mean(dim=1)


class _Layer(nn.Module):
    """Causal attention, then two linear layers, each behind a LayerNorm and with a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention_inputs = nn.Linear(width, 3 * width)
        self.attention_output = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)
        )

    @override
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention_output(self._attended(self.before_attention(x)))
        y: Tensor = x + self.mlp(self.before_mlp(x))
        return y

    def _attended(self, x: Tensor) -> Tensor:
        b, t, width = x.shape
        split = self.attention_inputs(x).view(b, t, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)  # (b, heads, t, width of a head) each
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(1, 2).reshape(b, t, width)


class LanguageModel(nn.Module):
    """A decoder whose embedding is also its last layer."""

    def __init__(self, vocabulary: int, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(_Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)  # the usual 1 would make scores of 28

    @override
    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return functional.linear(self.norm(x), self.tokens.weight)


def language_model(
    sequences: int = 8,
    length: int = 128,
    *,
    vocabulary: int = 50257,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    positions: int = 1024,
) -> LanguageWork:
    """GPT-2 small, 124 million parameters, by default; random weights, random tokens."""
    model = LanguageModel(vocabulary, positions, width, layers, heads)
    tokens = torch.randint(0, vocabulary, (sequences, length + 1))
    return LanguageWork(model, tokens[:, :-1], tokens[:, 1:].contiguous())
