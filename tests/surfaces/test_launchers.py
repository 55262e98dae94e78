"""Processes that Lightning starts itself; all other tests hand it two that are already there.

Run as a script, because processes that are forked should not inherit what other tests have left:

    python -m tests.surfaces.test_launchers
"""

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from torch.testing import assert_close

from lightning_jd.surfaces import JacobianDescent
from tests.helpers.halves import shared_batches
from tests.helpers.lightning import Regression, trainer, weights
from tests.helpers.two_processes import leave

#: `ddp`, which starts the script again, is that of `examples/two_processes.py`.
LAUNCHERS = ["ddp_fork", "ddp_notebook", "jd_ddp_fork", "jd_ddp_notebook", "ddp_spawn"]


class WithData(Regression):
    """The data are asked for in the process that trains."""

    def train_dataloader(self) -> Any:
        return shared_batches()


def train(**arguments: Any) -> dict[str, Tensor]:
    module = WithData("tasks").double()  # here too: trained weights come back to this one
    trainer(max_epochs=1, precision="64-true", **arguments).fit(module)
    return weights(module)


def main() -> None:
    warnings.simplefilter("ignore")
    expected = train(callbacks=[JacobianDescent()])
    for name in LAUNCHERS:
        callbacks = [] if "jd" in name else [JacobianDescent()]
        actual = train(strategy=name, devices=2, callbacks=callbacks)
        assert_close(actual, expected, rtol=0, atol=1e-10)
        print(name)
    leave()


@pytest.mark.slow
def test_whoever_starts_the_processes() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.surfaces.test_launchers"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert [line for line in run.stdout.splitlines() if line in LAUNCHERS] == LAUNCHERS


if __name__ == "__main__":
    main()
