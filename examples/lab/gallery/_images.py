"""Networks for images: classifiers, segmentation and diffusion U-Nets, contrastive pairs."""

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
    three_labels,
    three_targets,
)

_NEEDS = ("transformers",)


def cases() -> list[GalleryCase]:
    """The models of this file."""
    return [
        GalleryCase("vit", _vit, 16, 1.6, None, _NEEDS),
        GalleryCase("convnext", _convnext, 16, 1.6, None, _NEEDS),
        GalleryCase("swin", _swin, 16, 2.5, None, _NEEDS),
        GalleryCase("unet-instance-norm", _dynunet, 8, 1.8, None, ("monai",)),
        GalleryCase("diffusion-unet", _diffusion, 8, requires=("diffusers",)),
        GalleryCase("mlp-mixer", _mixer),
        GalleryCase("spectral-norm-critic", _critic),
        GalleryCase("siamese", _siamese),
        GalleryCase(
            "clip", _clip, requires=_NEEDS, mixes="every pair is scored against the others"
        ),
        GalleryCase("batchnorm-cnn", _batchnorm, mixes="BatchNorm in training mode"),
    ]


def _labelled(m: int, *shape: int) -> Batch:
    return {"x": torch.randn(m, *shape), "labels": torch.randint(0, 4, (m, 3))}


def _classes(model: nn.Module, batch: Batch) -> TaskLosses:
    return three_labels(model(batch["x"]), batch["labels"])


def _logits(model: nn.Module, batch: Batch) -> TaskLosses:
    return three_labels(model(batch["x"]).logits, batch["labels"])


def _vit(m: int) -> Specimen:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        image_size=32,
        patch_size=4,
        num_labels=12,
    )
    return Specimen(ViTForImageClassification(config), always(_labelled(m, 3, 32, 32)), _logits)


def _convnext(m: int) -> Specimen:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(
        hidden_sizes=[32, 64, 128, 128], depths=[1, 1, 1, 1], image_size=64, num_labels=12
    )
    model = ConvNextForImageClassification(config)
    with torch.no_grad():  # layers begin scaled to almost nothing, which would hide an error
        for name, parameter in model.named_parameters():
            if "layer_scale" in name:
                parameter.uniform_(0.5, 1.5)
    return Specimen(model, always(_labelled(m, 3, 64, 64)), _logits)


def _swin(m: int) -> Specimen:
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(
        image_size=32,
        patch_size=2,
        embed_dim=64,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        drop_path_rate=0.0,  # float64 would drop other paths than float32
        num_labels=12,
    )
    return Specimen(SwinForImageClassification(config), always(_labelled(m, 3, 32, 32)), _logits)


def _dynunet(m: int) -> Specimen:
    from monai.networks.nets import DynUNet

    model = DynUNet(
        spatial_dims=2,
        in_channels=1,
        out_channels=3,
        kernel_size=[3, 3, 3],
        strides=[1, 2, 2],
        upsample_kernel_size=[2, 2],
        filters=[16, 32, 64],
        norm_name=("instance", {"affine": True}),
    )
    batch = {"x": torch.randn(m, 1, 32, 32), "mask": torch.randint(0, 3, (m, 32, 32))}
    return Specimen(model, always(batch), _segmented)


def _segmented(model: nn.Module, batch: Batch) -> TaskLosses:
    scores, mask = model(batch["x"]), batch["mask"]
    chances, truth = scores.softmax(dim=1), F.one_hot(mask, 3).movedim(3, 1).to(scores.dtype)
    overlap = (chances * truth).sum(dim=(2, 3)) / (chances + truth).sum(dim=(2, 3))
    return {
        "cross-entropy": F.cross_entropy(scores, mask, reduction="none").mean(dim=(1, 2)),
        "dice": 1 - 2 * overlap.mean(dim=1),
        "smoothness": chances.diff(dim=3).square().mean(dim=(1, 2, 3)),
    }


def _diffusion(m: int) -> Specimen:
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
        attention_head_dim=16,
    )
    batch = {
        "x": torch.randn(m, 3, 16, 16),
        "time": torch.randint(0, 1000, (m,)),
        "noise": torch.randn(m, 3, 16, 16),
    }
    return Specimen(model.train(), always(batch), _denoised)


def _denoised(model: nn.Module, batch: Batch) -> TaskLosses:
    found = model(batch["x"], batch["time"]).sample
    return three_targets(found.movedim(1, -1), batch["noise"].movedim(1, -1))


class _MixerBlock(nn.Module):
    """Mixes patches, then channels."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.over_patches = _two_layers(patches, 64)
        self.over_channels = _two_layers(width, 256)

    @override
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.over_patches(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        mixed: Tensor = x + self.over_channels(self.norms[1](x))
        return mixed


class _Pooled(nn.Module):
    """The mean over the patches."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=1)


def _two_layers(width: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


def _mixer(m: int) -> Specimen:
    blocks = [_MixerBlock(16, 128) for _ in range(4)]
    model = nn.Sequential(
        nn.Unflatten(3, (4, 8)),
        nn.Unflatten(2, (4, 8)),
        _Patches(),
        nn.Linear(192, 128),
        *blocks,
        nn.LayerNorm(128),
        _Pooled(),
        nn.Linear(128, 12),
    )
    return Specimen(model, always(_labelled(m, 3, 32, 32)), _classes)


class _Patches(nn.Module):
    """(m, channels, rows, height, columns, width) to (m, rows columns, numbers of a patch)."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def _critic(m: int) -> Specimen:
    from torch.nn.utils.parametrizations import spectral_norm

    widths = [3, 32, 64, 128]
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [spectral_norm(nn.Conv2d(a, b, 4, 2, 1)), nn.LeakyReLU(0.2)]
    model = nn.Sequential(*layers, nn.Flatten(), spectral_norm(nn.Linear(128 * 16, 3)))
    # Power iteration changes the norm in every forward pass of training mode: float64 would meet
    # another function than float32 did.
    return Specimen(model.eval(), always({"x": torch.randn(m, 3, 32, 32)}), _judged)


def _judged(model: nn.Module, batch: Batch) -> TaskLosses:
    scores = model(batch["x"])
    return {
        "hinge": F.relu(1 - scores[:, 0]),
        "logistic": F.softplus(scores[:, 1]),
        "wasserstein": scores[:, 2],
    }


def _siamese(m: int) -> Specimen:
    encoder = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 49, 64),
    )
    batch = {name: torch.randn(m, 1, 28, 28) for name in ("anchor", "positive", "negative")}
    return Specimen(encoder, always(batch), _compared)


def _compared(model: nn.Module, batch: Batch) -> TaskLosses:
    """One encoder, called three times: every weight is used three times per instance."""
    anchor, positive, negative = (
        F.normalize(model(batch[name]), dim=1) for name in ("anchor", "positive", "negative")
    )
    near, far = (anchor - positive).square().sum(dim=1), (anchor - negative).square().sum(dim=1)
    return {"near": near, "far": (4 - far).square(), "triplet": F.softplus(near - far)}


def _clip(m: int) -> Specimen:
    from transformers import CLIPConfig, CLIPModel

    shared = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    config = CLIPConfig(
        text_config={
            **shared,
            "vocab_size": 256,
            "max_position_embeddings": 16,
            "bos_token_id": 0,
            "eos_token_id": 255,
        },
        vision_config={**shared, "image_size": 16, "patch_size": 4},
        projection_dim=32,
    )
    batch = {"x": torch.randn(m, 3, 16, 16), "tokens": torch.randint(0, 255, (m, 8))}
    return Specimen(CLIPModel(config), always(batch), _paired)


def _paired(model: nn.Module, batch: Batch) -> TaskLosses:
    output = model(input_ids=batch["tokens"], pixel_values=batch["x"])
    right = torch.arange(len(batch["x"]), device=batch["x"].device)
    features = output.image_embeds, output.text_embeds
    return {
        "image": F.cross_entropy(output.logits_per_image, right, reduction="none"),
        "text": F.cross_entropy(output.logits_per_text, right, reduction="none"),
        "alignment": 1 - (features[0] * features[1]).sum(dim=1),
    }


def _batchnorm(m: int) -> Specimen:
    widths = [3, 16, 32, 64]
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 12))
    return Specimen(model, always(_labelled(m, 3, 32, 32)), _classes)
