"""``frozen``: what ``batch_norm="frozen"`` and GroupNorm cost in accuracy."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from typing_extensions import override

from examples.lab.console import progress_bar
from examples.lab.folders import writable_folder
from examples.lab.report import Report, Value
from examples.lab.statistics import standard_error
from examples.lab.studies._settings import check_epochs, names_of
from examples.lab.trainer import bare_trainer, quiet
from lightning_jd import JacobianDescent
from lightning_jd.doctor import frozen_batch_norm, replace_batch_norm
from lightning_jd.errors import ArgumentError, MissingDependencyError, UnknownNameError

#: Training and BatchNorm of each line of the table.
SETTINGS = (
    ("plain", "exact"),
    ("plain", "frozen"),
    ("UPGrad", "exact"),
    ("UPGrad", "frozen"),
    ("UPGrad", "replaced by GroupNorm"),
)
_BATCH = 32

#: A module, its training batches, and the score of a trained module.
Problem = tuple[L.LightningModule, DataLoader[Any], Callable[[L.LightningModule], float]]


def frozen(
    problems: Sequence[str] | str = ("digits", "chemprop"),
    seeds: int = 3,
    epochs: int = 10,
    size: int = 1000,
    output: str = "results/frozen",
) -> None:
    """Train networks with BatchNorm exactly, with constant statistics, and with GroupNorm.

    Digits: two convolutions on the images of scikit-learn, test accuracy in percent. Chemprop: a
    message-passing network of that library (MPNN, 64 units, its own optimizer and schedule) learns
    the octanol-water partition coefficient (Crippen's logP, computed by RDKit) of molecules of the
    NCI set that RDKit contains, error in units of logP (root mean square over test molecules).
    Batches of 32, one objective per example. At the end there is a table (frozen.json, frozen.md).

    Args:
        problems: "digits" and "chemprop" (pip install chemprop).
        seeds: How many runs, with other splits, initial weights and batches.
        epochs: Passes over the training set.
        size: The number of training molecules; a fifth of it is the test set.
        output: The folder for the results.
    """
    check_epochs(epochs)
    if seeds < 1 or size < _BATCH:
        raise ArgumentError(
            f"`seeds` must be positive and `size` at least {_BATCH}, got {seeds} and {size}."
        )
    known: dict[str, Callable[[int], Problem]] = {
        "digits": _digits,
        "chemprop": lambda seed: _chemprop(seed, size, epochs),
    }
    for name in names_of(problems):
        if name not in known:
            raise UnknownNameError.of("problems", name, known)
    folder = writable_folder(output)
    rows: list[dict[str, Value]] = []
    total = len(names_of(problems)) * len(SETTINGS)
    with progress_bar(total=total, counts="finished") as announce:
        for name in names_of(problems):
            for training, norm in SETTINGS:
                announce(f"{name}, {training}, {norm}")
                scores = [_trained(known[name](seed), training, norm, epochs, seed)
                          for seed in range(seeds)]  # fmt: skip
                error = standard_error(scores)
                shown = f"{statistics.mean(scores):.3g}" + (f" ± {error:.2g}" if error else "")
                rows.append({"problem": name, "training": training, "norm": norm, "score": shown})
    columns = {"problem": "problem", "training": "training", "norm": "BatchNorm", "score": "test"}
    notes = (f"Mean of {seeds} seed(s) ± standard error, {epochs} epochs.",)
    Report("frozen", "Frozen statistics of BatchNorm", columns, rows, notes).publish(folder)


def _trained(problem: Problem, training: str, norm: str, epochs: int, seed: int) -> float:
    module, batches, score = problem
    if norm.startswith("replaced"):
        replace_batch_norm(module)
    elif norm == "frozen" and training == "plain":
        forward = module.training_step

        def step(*args: Any) -> Any:
            with frozen_batch_norm():
                return forward(*args)

        module.training_step = step  # type: ignore[method-assign]
    descent = JacobianDescent(
        "upgrad", split="instances", batch_norm="frozen" if norm == "frozen" else "exact"
    )
    torch.manual_seed(seed)
    with quiet():
        bare_trainer(epochs, [descent] if training == "UPGrad" else []).fit(module, batches)
    return score(module.eval())


class _Classifier(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10),
        )  # fmt: skip

    @override
    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        return cross_entropy(self.network(images), labels)

    @override
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def _digits(seed: int) -> Problem:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels).float().view(-1, 1, 8, 8) / 16, torch.tensor(labels)
    torch.manual_seed(seed)
    order = torch.randperm(len(labels))
    train, test = order[:-360], order[-360:]
    batches = DataLoader(
        TensorDataset(images[train], labels[train]), _BATCH, shuffle=True, drop_last=True
    )

    @torch.no_grad()
    def accuracy(module: L.LightningModule) -> float:
        found = module.network(images[test]).argmax(dim=1)  # type: ignore[operator]
        return 100 * float((found == labels[test]).float().mean())

    return _Classifier(), batches, accuracy


def _chemprop(seed: int, size: int, epochs: int) -> Problem:
    try:
        from chemprop import data, models
        from chemprop import nn as parts
        from rdkit import RDConfig
    except ImportError as error:
        raise MissingDependencyError(
            "The problem 'chemprop' needs chemprop and rdkit. Run: pip install chemprop"
        ) from error
    points = _molecules(Path(RDConfig.RDDataDir), data.MoleculeDatapoint, size + size // 5)
    torch.manual_seed(seed)
    shuffled = [points[i] for i in torch.randperm(len(points)).tolist()]
    train = data.MoleculeDataset(copy.deepcopy(shuffled[:size]))
    scaler = train.normalize_targets()
    test = data.MoleculeDataset(shuffled[size:])
    batches = data.build_dataloader(train, batch_size=_BATCH, shuffle=True, seed=seed)
    module = models.MPNN(
        parts.BondMessagePassing(d_h=64),
        parts.MeanAggregation(),
        parts.RegressionFFN(
            input_dim=64,
            hidden_dim=64,
            output_transform=parts.UnscaleTransform.from_standard_scaler(scaler),
        ),
        batch_norm=True,
    )
    module.hparams["warmup_epochs"] = min(2, epochs - 1)

    @torch.no_grad()
    def deviation(trained: L.LightningModule) -> float:
        (batch,) = data.build_dataloader(test, batch_size=len(test), shuffle=False)
        found = trained(batch.bmg, batch.V_d, batch.X_d)
        return float((found - batch.Y).square().mean().sqrt())

    return module, batches, deviation


def _molecules(folder: Path, point: Any, count: int) -> list[Any]:
    """The first molecules of the NCI set, each with its logP."""
    from rdkit import Chem, RDLogger
    from rdkit.Chem.Crippen import MolLogP

    RDLogger.DisableLog("rdApp.*")
    found = []
    for line in (folder / "NCI" / "first_5K.smi").read_text().splitlines():
        smiles = line.split()[0]
        molecule = Chem.MolFromSmiles(smiles)
        if molecule is not None and molecule.GetNumBonds() > 0:
            found.append(point.from_smi(smiles, [MolLogP(molecule)]))
        if len(found) == count:
            break
    return found
