"""``bench exactness``: norms of per-example gradients by several packages, against autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from examples.lab.folders import writable_folder
from examples.lab.report import Report, Value
from lightning_jd import gradient_norms

_ENTRIES, _WIDTH, _LENGTH, _EXAMPLES = 50, 16, 6, 8
#: Relative errors up to here are rounding in single precision.
_RIGHT = 1e-4

Norms = Callable[[nn.Module, Tensor], Tensor]


class _Language(nn.Module):
    """A language model of two layers, whose head depends on the case; the losses are its output."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(_ENTRIES, _WIDTH)
        nn.init.normal_(self.table.weight, std=0.02)
        self.body = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Tanh(), nn.Linear(_WIDTH, _WIDTH))
        self.head = nn.Linear(_WIDTH, _ENTRIES, bias=False)

    def hidden(self, words: Tensor) -> Tensor:
        """What the head reads."""
        h: Tensor = self.body(self.table(words))
        return h

    def logits(self, h: Tensor) -> Tensor:
        """One per entry of the table."""
        found: Tensor = self.head(h)
        return found

    @override
    def forward(self, words: Tensor) -> Tensor:
        logits = self.logits(self.hidden(words))
        each = F.cross_entropy(logits[:, :-1].mT, words[:, 1:], reduction="none")
        return each.sum(dim=1)


class TiedHead(_Language):
    """``h @ table.weight.T``."""

    def __init__(self) -> None:
        super().__init__()
        del self.head

    @override
    def logits(self, h: Tensor) -> Tensor:
        return h @ self.table.weight.T


class SharedModule(_Language):
    """One layer that is called twice."""

    @override
    def hidden(self, words: Tensor) -> Tensor:
        h: Tensor = self.body(self.body(self.table(words)))
        return h


class FunctionalUse(_Language):
    """The weight of a layer in ``F.linear``, whose module is not called."""

    @override
    def logits(self, h: Tensor) -> Tensor:
        return F.linear(h, self.head.weight)


class Recurrent(_Language):
    """An LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(_WIDTH, _WIDTH, batch_first=True)

    @override
    def hidden(self, words: Tensor) -> Tensor:
        h: Tensor = self.cell(self.table(words))[0]
        return h


class GroupNorm(_Language):
    """Group normalisation in the body."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, _WIDTH)

    @override
    def hidden(self, words: Tensor) -> Tensor:
        h: Tensor = self.norm(super().hidden(words).mT).mT
        return h


class Gather(_Language):
    """A parameter that is looked up by ``gather``, without a module."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(1, _ENTRIES))

    @override
    def hidden(self, words: Tensor) -> Tensor:
        offset = self.bias.expand(len(words), -1).gather(1, words)
        h: Tensor = super().hidden(words) * offset.unsqueeze(2)
        return h


MODELS: dict[str, type[_Language]] = {
    "head is `h @ table.weight.T`": TiedHead,
    "one layer called twice": SharedModule,
    "weight in `F.linear`": FunctionalUse,
    "LSTM": Recurrent,
    "group norm": GroupNorm,
    "`gather` from a parameter": Gather,
}


def by_autograd(model: nn.Module, words: Tensor) -> Tensor:
    """One backward pass per example, in double precision."""
    model = deepcopy(model).double()
    parameters = list(model.parameters())
    found = []
    for loss in model(words):
        rows = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        found.append(torch.cat([row.flatten() for row in rows if row is not None]).norm())
    return torch.stack(found)


def by_us(model: nn.Module, words: Tensor) -> Tensor:
    """This package."""
    return gradient_norms(model(words), model)


def by_opacus(model: nn.Module, words: Tensor) -> Tensor:
    """Hooks on modules."""
    from opacus import GradSampleModule  # type: ignore[import-not-found,unused-ignore]

    wrapped = GradSampleModule(deepcopy(model), batch_first=True, loss_reduction="sum")
    wrapped(words).sum().backward()
    found = [getattr(p, "grad_sample", None) for p in wrapped.parameters()]
    return _norms([row for row in found if row is not None])


def by_torchjd(model: nn.Module, words: Tensor) -> Tensor:
    """The diagonal of the Gramian of autogram."""
    from torchjd.autogram import Engine

    model = deepcopy(model)
    engine = Engine(model, batch_dim=0)
    gramian: Tensor = engine.compute_gramian(model(words))
    return gramian.diagonal().sqrt()


def by_vmap(model: nn.Module, words: Tensor) -> Tensor:
    """``torch.func.vmap`` of ``grad``."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], example: Tensor) -> Tensor:
        total: Tensor = torch.func.functional_call(model, parameters, (example[None],)).sum()
        return total

    rows = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, words)
    return _norms(rows.values())


def _norms(rows: Iterable[Tensor]) -> Tensor:
    found: Tensor = torch.cat([row.flatten(1) for row in rows], dim=1).norm(dim=1)
    return found


ENGINES: dict[str, tuple[str, Norms]] = {
    "lightning_jd": ("lightning_jd", by_us),
    "opacus": ("Opacus, hooks", by_opacus),
    "torchjd": ("TorchJD, autogram", by_torchjd),
    "torch": ("`torch.func`, vmap of grad", by_vmap),
}


def exactness(output: Path = Path("results")) -> None:
    """Compare norms of per-example gradients with one backward pass per example in float64.

    Args:
        output: The folder for exactness.json and exactness.md.
    """
    writable_folder(output)
    rows = [compared(name, cls) for name, cls in MODELS.items()]
    columns = {"model": "model"} | {key: title for key, (title, _) in ENGINES.items()}
    versions = ", ".join(f"{name} {found}" for name in ENGINES if (found := _version(name)))
    note = (
        f"The largest relative error of the norms of {_EXAMPLES} gradients, float32, against one "
        f"backward pass per example in float64. `-`: not installed. Versions: {versions}."
    )
    report = Report("exactness", "Norms of per-example gradients", columns, rows, (note,))
    report.publish(output)


def compared(name: str, cls: type[_Language]) -> dict[str, Value]:
    """One line of the table."""
    torch.manual_seed(0)
    model, words = cls(), torch.randint(0, _ENTRIES, (_EXAMPLES, _LENGTH))
    expected = by_autograd(model, words)
    row: dict[str, Value] = {"model": name}
    for key, (_, norms) in ENGINES.items():
        row[key] = _verdict(norms, model, words, expected) if _version(key) else "-"
    return row


def _verdict(norms: Norms, model: nn.Module, words: Tensor, expected: Tensor) -> str:
    try:
        found = norms(model, words)
    except Exception as error:  # whatever a package says
        return f"refused ({type(error).__name__})"
    off = float(((found.detach() - expected).abs() / expected).max())
    return f"right ({off:.0e})" if off < _RIGHT else f"**wrong by {100 * off:.2g} %**"


def _version(package: str) -> str:
    if package == "lightning_jd":
        package = "lightning-jd"
    try:
        return version(package)
    except PackageNotFoundError:
        return "here" if package == "lightning-jd" else ""
