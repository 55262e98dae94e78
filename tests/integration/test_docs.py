"""The code of the quickstart runs, in the order in which it is read."""

import re
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, TensorDataset

from tests.helpers.lightning import QUIET

DOCS = Path(__file__).parents[2] / "docs"


def test_the_code_of_the_quickstart_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "quickstart.md").read_text(), re.DOTALL)
    assert len(blocks) >= 4
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    x, y = torch.randn(64, 8), torch.randint(0, 3, (64,))
    data = DataLoader(TensorDataset(x, y), batch_size=32)
    Trainer, JacobianDescent = names["L"].Trainer, names["JacobianDescent"]
    Trainer(**QUIET, max_epochs=1, callbacks=[JacobianDescent("upgrad")]).fit(names["Lit"](), data)
    Trainer(**QUIET, max_epochs=1, callbacks=[JacobianDescent()]).fit(names["Manual"](), data)
    Trainer(**QUIET, max_epochs=1).fit(names["Flagged"](), data)
    net = names["Lit"]().net
    names["step_without_lightning"](net, torch.optim.SGD(net.parameters(), lr=0.1), x, y)
    run = Fabric(accelerator="cpu", devices=1)
    net, optimizer = run.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    names["step"](run, net, optimizer, x, y)
