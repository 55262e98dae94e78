"""The list of cases, and what they are made of."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Named = list[tuple[str, Tensor]]
Losses = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
Built = tuple[Losses, Named]
Case = Callable[[], Built]
CASES: dict[str, Case] = {}
BATCH = 5


def case(build: Case) -> Case:
    """Add a function without arguments that returns losses and named parameters."""
    known = CASES.get(build.__name__, build)  # the collection of doctests imports a file twice
    assert known.__code__.co_filename == build.__code__.co_filename, "two cases of one name"
    CASES[build.__name__] = build
    return build


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Build models and data in another floating-point type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def per_instance(output: Tensor) -> Tensor:
    """One loss per entry of the first dimension, with gradients of both signs."""
    target = torch.linspace(-1, 1, output[0].numel()).reshape(output[0].shape)
    return (output - target).square().flatten(1).sum(1) if output.ndim > 1 else output.square()


def named(*modules: nn.Module) -> Named:
    """All parameters, under a name that says which module they come from."""
    found = {}
    for position, module in enumerate(modules):
        for name, tensor in module.named_parameters():
            found.setdefault(id(tensor), (f"{position}.{name}", tensor))
    return list(found.values())


def on(module: nn.Module, *shape: int) -> Built:
    """The module on random input, with a layer in front so that its input needs a gradient too."""
    front = nn.Linear(shape[-1], shape[-1])
    return per_instance(module(front(torch.randn(BATCH, *shape)))), named(front, module)
