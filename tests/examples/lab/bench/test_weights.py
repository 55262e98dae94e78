"""The benchmark of the weights: its Gramians, its table, its verdicts. Nothing here is timed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from examples.lab.bench import weights as module
from examples.lab.bench._gramians import FAMILIES
from examples.lab.bench.weights import weights
from examples.lab.clock import Timing
from lightning_jd.linalg import dual_cone_weights
from lightning_jd.linalg._scaling import unit_diagonal

# The paper's network on MNIST, 128 images and UPGrad at a learning rate of 0.05, before steps 0, 20
# and 399: the lower triangles.
with np.load(Path(__file__).parent / "data" / "gramians_of_a_run.npz") as archive:
    RUNS = {
        name: torch.zeros(128, 128).index_put_(
            tuple(torch.tril_indices(128, 128)), torch.from_numpy(archive[name])
        )
        for name in archive.files
    }
    RUNS = {name: G + G.tril(-1).T for name, G in RUNS.items()}


@pytest.mark.parametrize("m", [1, 2, 7])
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "network"])
def test_a_family_gives_symmetric_positive_semidefinite_matrices(family: str, m: int) -> None:
    G = FAMILIES[family](m)
    assert G.shape == (m, m)
    assert G.dtype == (torch.float32 if family.startswith("run_") else torch.float64)
    least = torch.linalg.eigvalsh((G + G.T).double() / 2).min()
    assert least > -10 * torch.finfo(G.dtype).eps * G.trace()
    assert torch.equal(G, FAMILIES[family](m)), "every run must see the same matrices"


def test_the_families_are_what_their_names_say() -> None:
    assert torch.linalg.matrix_rank(FAMILIES["low_rank"](16), hermitian=True) == 4
    duplicates = FAMILIES["duplicates"](6)
    assert torch.equal(duplicates[0], duplicates[1])
    camps = FAMILIES["conflicting"](64)
    norms = camps.diagonal().sqrt()
    assert norms[-1] / norms[0] == pytest.approx(1e4)
    cosines = camps / norms / norms[:, None]
    assert cosines[0, 1::2].max() < -0.5
    assert cosines[0, 0::2].min() > 0.5


@pytest.mark.parametrize("moment", ["start", "early", "late"])
def test_a_moment_of_a_run_is_like_the_real_one(moment: str) -> None:
    real = _traits(RUNS[moment])
    made = _traits(FAMILIES[f"run_{moment}"](128))
    for name, value in real.items():
        assert value / 3 <= made[name] <= 3 * value, (name, made[name], value)


def _traits(G: Tensor) -> dict[str, float]:
    C = unit_diagonal(G, 1e-4).C
    eigenvalues = torch.linalg.eigvalsh(C)
    Z = dual_cone_weights(G.double(), torch.eye(128).double()) - torch.eye(128)
    norms = G.diagonal().sqrt()
    return {
        "condition": float(eigenvalues[-1] / eigenvalues[0]),
        "largest eigenvalue": float(eigenvalues[-1]),
        "large eigenvalues": float((eigenvalues > 2).sum()),
        "median eigenvalue": float(eigenvalues.median()),
        "conflicts": float((C < 0).double().mean()),
        "raised weights": float((Z > 0).double().mean()),
        "similarity": float((C - C.diagonal().diag()).abs().mean()),
        "norms, as a logarithm": 1 - float((norms.median() / norms.max()).log()),
    }


def run(output: Path, **arguments: Any) -> dict[str, Any]:
    small = {"sizes": [2, 4], "families": ["gaussian"], "repeats": 2, "m1024": False}
    weights(**(small | arguments), output=str(output))
    content: dict[str, Any] = json.loads((output / "weights.json").read_text())
    return content


def test_the_command_prints_a_table_and_writes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torchjd")
    content = run(tmp_path)
    printed = capsys.readouterr().out
    assert "upgrad" in printed
    assert "Wrote" in printed
    assert (tmp_path / "weights.md").read_text().startswith("# Weights from a Gramian")
    first = content["rows"][0]
    assert first["ours_ms"] > 0
    assert first["torchjd_ms"] > 0
    assert {row["method"] for row in content["rows"]} == set(module._OPPONENTS)
    for row in content["rows"]:
        compared = {"idle", "one_idle_ms", "loaded", "one_loaded_ms"} <= row.keys()
        assert compared == (row["method"] == "upgrad")
        if row["method"] in ("upgrad", "dualproj"):
            assert max(row["residual_0"], row["residual_reg"]) <= 1e-10


@pytest.mark.parametrize(
    ("family", "m", "seconds", "mark"),
    [
        ("gaussian", 1024, 2.0, "met"),
        ("gaussian", 1024, 60.0, "missed"),
        ("run_early", 1024, 2.0, "missed"),
        ("run_early", 256, 0.02, "met"),
        ("run_late", 128, 0.006, "missed"),
        ("run_late", 64, 1.0, ""),
    ],
)
def test_time_is_held_against_its_target(family: str, m: int, seconds: float, mark: str) -> None:
    case = module._Case("upgrad", family, m)
    assert module._comparison(case, {"ours": Timing((seconds,))})["mark"] == mark
