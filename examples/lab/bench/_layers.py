"""The sizes of the layers of a model, from which what processes send is computed."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from examples.lab.bench._volume import Head, Matrix
from lightning_jd.engines import Objectives, tasks_reaching

Kind = Literal["instances", "tasks", "ranks"]


def layers_of(model: nn.Module, x: Tensor, kind: Kind) -> list[int | Matrix | Head]:
    """The sizes of the layers of a model, from the shapes in a forward pass.

    Args:
        model: The model. If it returns a list, that has one output per task.
        x: The batch of one process.
        kind: What a row is: an instance, or a task, which is about the whole batch.

    Example:
        >>> import torch
        >>> layers_of(nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2)), torch.ones(4, 3), "tasks")
        [Matrix(positions=4, inputs=3, outputs=2, bias=2, shared=False), 2, 2]
    """
    outputs: dict[nn.Module, Tensor] = {}
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    hooks = [
        layer.register_forward_hook(lambda layer, _, output: outputs.update({layer: output}))
        for layer in layers
    ]
    answer = model(x)
    for hook in hooks:
        hook.remove()
    several = kind == "tasks" and isinstance(answer, list) and len(answer) > 1
    masks = tasks_reaching(Objectives.of([each.sum() for each in answer])) if several else {}
    found: list[int | Matrix | Head] = []
    for layer in model.modules():
        tensors = list(layer.parameters(recurse=False))
        own = [tensor.numel() for tensor in tensors]
        if several and all(masks.get(id(tensor), 0).bit_count() == 1 for tensor in tensors):
            found += [Head(size) for size in own]
        elif isinstance(layer, nn.Linear):
            positions = outputs[layer].numel() // layer.out_features
            each = positions if kind == "tasks" else positions // len(x)
            found.append(Matrix(each, layer.in_features, layer.out_features, sum(own[1:])))
        elif isinstance(layer, nn.Conv2d) and layer.groups == 1 and kind == "instances":
            pixels = outputs[layer][0, 0].numel()
            patch = own[0] // layer.out_channels
            found += [Matrix(pixels, patch, layer.out_channels), *own[1:]]
        else:
            found += own
    return found
