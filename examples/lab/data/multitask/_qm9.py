"""QM9: properties of small molecules, from the tables of the PyPI package qm9pack.

References:
    Ramakrishnan, Dral, Rupp, von Lilienfeld: *Quantum chemistry structures and properties of 134
    kilo molecules*, Scientific Data, 2014.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from examples.lab.data._files import damaged, find
from examples.lab.data.multitask._parts import Multitask, Part, Task, shuffled

_ORIGIN = "QM9 in the PyPI package qm9pack (folder qm9pack/data)"
_FILES = ("qm9_part1.csv", "qm9_part2.csv", "qm9_part3.csv")
_SUBSET = 20_000
_ELEMENTS = {"H": 1, "C": 2, "N": 3, "O": 4, "F": 5}
_MOST_ATOMS = 29
#: Task to its column: the eleven that comparisons of multi-task methods use.
TARGETS = {
    "mu": "Dipole_debye",
    "alpha": "Polarizability_bohr3",
    "homo": "HOMO_au",
    "lumo": "LUMO_au",
    "r2": "R2_bohr2",
    "zpve": "ZPVE_au",
    "u0": "InternalEnergy_0K_au",
    "u": "InternalEnergy_298K_au",
    "h": "Enthalphy_298K_au",
    "g": "GibbsFreeEnergy_298K_au",
    "cv": "Heatcapacity_Cv_cal_mol_K",
}


def load_qm9(folder: Path, subset: int = _SUBSET) -> Multitask:
    """Read a random subset: 80 % to train, 10 % to choose, 10 % to judge.

    Inputs are the elements (n, 29), 0 where a molecule has no further atom, and the positions
    (n, 29, 3) in Ångström. Targets are standardised by the training part.

    Raises:
        ArgumentError: If a file is missing or damaged.
    """
    paths = [find(folder, (name,), _ORIGIN) for name in _FILES]
    counts = [_lines(path) - 1 for path in paths]
    chosen = shuffled(sum(counts))[: min(subset, sum(counts))]
    rows = list(_rows(paths, counts, set(chosen.tolist())))
    elements, positions = _atoms(rows)
    order = shuffled(len(rows), seed=1)
    values = {
        name: torch.tensor([float(row[column]) for row in rows])[order]
        for name, column in TARGETS.items()
    }
    cuts = int(0.8 * len(rows)), int(0.9 * len(rows))
    tasks, targets = [], {}
    for name, value in values.items():
        mean, deviation = value[: cuts[0]].mean(), value[: cuts[0]].std().clamp(min=1e-12)
        targets[name] = (value - mean) / deviation
        tasks.append(Task(name, "number", scale=float(deviation)))
    whole = Part((elements[order], positions[order]), targets)
    slices = slice(0, cuts[0]), slice(*cuts), slice(cuts[1], None)
    return Multitask(tuple(tasks), *(whole.chosen(part) for part in slices))


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def _rows(paths: list[Path], counts: list[int], chosen: set[int]) -> Iterator[dict[str, str]]:
    begin = 0
    for path, count in zip(paths, counts, strict=True):
        with path.open(encoding="utf-8", newline="") as file:
            header = next(csv.reader([file.readline()]))
            missing = {*TARGETS.values(), "Elements", "XYZ_Ang"} - set(header)
            if missing:
                raise damaged(path, f"has no column {sorted(missing)[0]!r}", _ORIGIN)
            for number, line in enumerate(file):
                if begin + number in chosen:
                    yield dict(zip(header, next(csv.reader([line])), strict=True))
        begin += count


def _atoms(rows: list[dict[str, str]]) -> tuple[Tensor, Tensor]:
    elements = torch.zeros(len(rows), _MOST_ATOMS, dtype=torch.long)
    positions = torch.zeros(len(rows), _MOST_ATOMS, 3)
    for i, row in enumerate(rows):
        symbols = row["Elements"].strip("[]").replace("'", "").split(",")
        places = [float(x) for x in row["XYZ_Ang"].replace("[", "").replace("]", "").split(",")]
        elements[i, : len(symbols)] = torch.tensor([_ELEMENTS[symbol] for symbol in symbols])
        positions[i, : len(symbols)] = torch.tensor(places).reshape(-1, 3)
    return elements, positions
