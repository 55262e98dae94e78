"""Both packages of Lightning, and both orders of import; each in a process of its own."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = "['jd', 'jd_ddp', 'jd_ddp_fork', 'jd_ddp_notebook', 'jd_ddp_spawn']"
IMPORTS = {
    "ours first": "import lightning_jd\nimport {package} as L",
    "Lightning first": "import {package} as L\nimport lightning_jd",
}
HELPERS = """
import torch
from torch.utils.data import DataLoader, TensorDataset

class Lit(L.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(3, 2)
    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).square()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

def fit(module, **arguments):
    trainer = L.Trainer(accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, **arguments)
    trainer.fit(module, DataLoader(TensorDataset(torch.eye(3)), batch_size=3))
    assert not {"training_step", "backward"} & vars(trainer.strategy).keys()
    return module.layer.weight.detach()
"""
EVERY_SURFACE = """
class Flagged(lightning_jd.JDModuleMixin, Lit):
    jacobian_descent = "upgrad"

packages = ["lightning.pytorch", "pytorch_lightning"]
runs = [
    fit(Lit(), callbacks=[lightning_jd.JacobianDescent("upgrad")]),
    fit(Lit(), callbacks=lightning_jd.JacobianDescent("upgrad")),
    fit(Lit(), strategy="jd"),
    fit(Lit(), strategy=lightning_jd.JDStrategy("upgrad")),
    fit(Flagged()),
]
assert all(torch.equal(run, runs[0]) for run in runs)
assert not torch.equal(runs[0], Lit().layer.weight)
import sys
print(sorted(name for name in L.strategies.StrategyRegistry if name.startswith("jd")))
print([name for name in packages if name in sys.modules] == [L.__name__])
"""


#: The process ends with the code: torch may abort while it takes down its threads.
LEAVE = "\nimport os, sys\nsys.stdout.flush()\nos._exit(0)\n"


def python(code: str) -> str:
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code) + LEAVE],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "order"),
    [
        ("lightning.pytorch", "ours first"),
        ("pytorch_lightning", "ours first"),
        ("pytorch_lightning", "Lightning first"),
    ],
)
def test_every_surface_in_either_package(package: str, order: str) -> None:
    code = IMPORTS[order].format(package=package) + HELPERS + EVERY_SURFACE
    assert python(code).splitlines() == [NAMES, "True"]  # and the other package is not imported


WITH_BOTH = """
import lightning.pytorch, lightning_jd
import pytorch_lightning as L
from lightning_jd.surfaces import lightning_pytorch as ours, pytorch_lightning as theirs
assert lightning_jd.JacobianDescent is ours.JacobianDescent
assert issubclass(ours.JDStrategy, lightning.pytorch.strategies.Strategy)
assert issubclass(theirs.JDStrategy, L.strategies.Strategy)
"""
MIXED = """
class Flagged(lightning_jd.JDModuleMixin, Lit):
    jacobian_descent = "upgrad"

callback = lightning_jd.JacobianDescent("upgrad")
assert not isinstance(callback, L.Callback)
assert isinstance(Flagged().configure_callbacks()[0], L.Callback)
print(torch.equal(fit(Lit(), callbacks=[callback]), fit(Flagged())))
"""


@pytest.mark.slow
def test_with_both_packages_the_callback_works_in_either_trainer() -> None:
    assert python(WITH_BOTH + HELPERS + MIXED).strip() == "True"


@pytest.mark.slow
def test_importing_ours_does_not_import_lightning() -> None:
    code = """
    import sys, lightning_jd, lightning_jd.surfaces, lightning_jd.surfaces.module
    print([name for name in ("lightning", "pytorch_lightning") if name in sys.modules])
    """
    assert python(code).strip() == "[]"
