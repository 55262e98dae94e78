"""Forecasters of time series: recurrent, and stacks of residual blocks."""

from __future__ import annotations

from itertools import pairwise

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

_PAST, _FUTURE, _FEATURES = 24, 6, 8


def cases() -> list[GalleryCase]:
    """The models of this file."""
    return [
        GalleryCase("lstm-forecaster", lambda m: _forecaster(m, nn.LSTM), 16, 5.0),
        GalleryCase("gru-forecaster", lambda m: _forecaster(m, nn.GRU), 16, 5.0),
        GalleryCase("tft", _tft, requires=("pytorch_forecasting",)),
        GalleryCase("n-beats", _nbeats),
    ]


class _Recurrent(nn.Module):
    """Encoder and decoder around the features that an index selects, with gates between."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU], width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, _FEATURES)
        self.lift = nn.Linear(2 * _FEATURES, width)
        self.encoder = kind(width, width, num_layers=2, batch_first=True)
        self.decoder = kind(width, width, num_layers=2, batch_first=True)
        self.gate = nn.Linear(width, 2 * width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 3)
        self.register_buffer("chosen", torch.randperm(2 * _FEATURES))

    @override
    def forward(self, series: Tensor, month: Tensor) -> Tensor:
        chosen = self.get_buffer("chosen")
        both = torch.cat([series, self.embedding(month)], dim=2).index_select(2, chosen)
        lifted = self.lift(both)
        past, future = lifted[:, :_PAST], lifted[:, _PAST:]
        encoded, state = self.encoder(past)
        decoded, _ = self.decoder(future, state)
        steps = torch.cat([encoded, decoded], dim=1)
        steps = self.norm(lifted + F.glu(self.gate(steps), dim=2))
        quantiles: Tensor = self.head(steps[:, _PAST:])
        return quantiles


def _forecaster(m: int, kind: type[nn.LSTM | nn.GRU]) -> Specimen:
    length = _PAST + _FUTURE
    batch = {
        "series": torch.randn(m, length, _FEATURES),
        "month": torch.randint(0, 12, (m, length)),
        "y": torch.randn(m, _FUTURE),
    }
    return Specimen(_Recurrent(kind, 128), always(batch), _pinball)


def _pinball(model: nn.Module, batch: Batch) -> TaskLosses:
    return _quantile_losses(model(batch["series"], batch["month"]), batch["y"])


def _quantile_losses(quantiles: Tensor, y: Tensor) -> TaskLosses:
    losses = {}
    for k, q in enumerate((0.1, 0.5, 0.9)):
        error = y - quantiles[..., k]
        losses[f"quantile {q}"] = torch.maximum(q * error, (q - 1) * error).mean(dim=1)
    return losses


def _tft(m: int) -> Specimen:
    from pytorch_forecasting import TemporalFusionTransformer
    from pytorch_forecasting.metrics import QuantileLoss

    model = TemporalFusionTransformer(
        hidden_size=32,
        lstm_layers=1,
        attention_head_size=2,
        dropout=0.0,
        output_size=3,
        loss=QuantileLoss([0.1, 0.5, 0.9]),
        output_transformer=lambda answer: answer["prediction"],
        hidden_continuous_size=16,
        max_encoder_length=_PAST,
        static_categoricals=["shop"],
        static_reals=["size"],
        time_varying_categoricals_encoder=["month"],
        time_varying_categoricals_decoder=["month"],
        time_varying_reals_encoder=["price", "y"],
        time_varying_reals_decoder=["price"],
        x_categoricals=["shop", "month"],
        x_reals=["size", "price", "y"],
        embedding_sizes={"shop": (5, 4), "month": (12, 6)},
        embedding_paddings=[],
        embedding_labels={},
    )
    lengths = torch.randint(_PAST // 2, _PAST + 1, (m,))
    lengths[0] = _PAST  # the model expects that the longest of a batch fills it
    batch = {
        "encoder_cat": torch.stack(
            [torch.randint(0, 5, (m, 1)).expand(m, _PAST), torch.randint(0, 12, (m, _PAST))], 2
        ),
        "encoder_cont": torch.randn(m, _PAST, 3),
        "decoder_cat": torch.stack(
            [torch.randint(0, 5, (m, 1)).expand(m, _FUTURE), torch.randint(0, 12, (m, _FUTURE))], 2
        ),
        "decoder_cont": torch.randn(m, _FUTURE, 3),
        "encoder_lengths": lengths,
        "decoder_lengths": torch.full((m,), _FUTURE),
        "target_scale": torch.stack([torch.zeros(m), torch.ones(m)], 1),
        "y": torch.randn(m, _FUTURE),
    }
    return Specimen(model, always(batch), _fused)


def _fused(model: nn.Module, batch: Batch) -> TaskLosses:
    return _quantile_losses(model(batch)["prediction"], batch["y"])


class _Block(nn.Module):
    """Fully connected layers that explain a part of the past, and forecast from it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = [_PAST, width, width, width]
        pairs = pairwise(sizes)
        self.body = nn.Sequential(*[m for a, b in pairs for m in (nn.Linear(a, b), nn.ReLU())])
        self.backcast, self.forecast = nn.Linear(width, _PAST), nn.Linear(width, _FUTURE)

    @override
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(x)
        return x - self.backcast(hidden), self.forecast(hidden)


class _NBeats(nn.Module):
    """Blocks, each of which sees what the ones before it have left unexplained."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Block(128) for _ in range(4))

    @override
    def forward(self, x: Tensor) -> Tensor:
        total = x.new_zeros(len(x), _FUTURE)
        for block in self.blocks:
            x, forecast = block(x)
            total = total + forecast
        return total


def _nbeats(m: int) -> Specimen:
    batch = {"x": torch.randn(m, _PAST), "y": torch.randn(m, _FUTURE)}
    return Specimen(_NBeats(), always(batch), lambda net, b: three_targets(net(b["x"]), b["y"]))
