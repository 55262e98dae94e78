"""Two processes that are interrupted go on bit for bit, for every kind of rows."""

import warnings
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.testing import assert_close
from torch.utils.data import Subset

from lightning_jd.surfaces import JDDDPStrategy
from tests.helpers.halves import assert_same_bits
from tests.helpers.lightning import Regression, ResumableLoader, batches, fit, weights
from tests.helpers.two_processes import run_in_two_processes

FORMS: dict[str, Any] = {"tasks": "tasks", "instances": "instances", "ranks": "scalar"}
STEPS, PIECES = 4, 2  # micro-batches per step


def run(kind: str, accumulation: str, **arguments: Any) -> Any:
    module = Regression(FORMS[kind], lr=0.02, momentum=0.9)
    rows: dict[str, Any] = {"rows": "ranks"} if kind == "ranks" else {}
    n = STEPS * PIECES * 2
    own = Subset(batches(n=2 * n).dataset, range(dist.get_rank() * n, (1 + dist.get_rank()) * n))
    fit(
        module,
        ResumableLoader(own, 2),
        max_epochs=1,
        accumulate_grad_batches=PIECES,
        strategy=JDDDPStrategy("rgw", accumulation=accumulation, **rows),
        devices=2,
        use_distributed_sampler=False,
        **arguments,
    )
    return weights(module)


def resume(rank: int, folder: Path) -> None:
    """In the middle of an epoch, with momentum and an aggregator that draws random numbers."""
    warnings.simplefilter("ignore")
    wrong = []
    for cell in product(FORMS, ["batch", "step"]):
        uninterrupted = run(*cell)
        path = folder / "-".join(cell)
        saving = ModelCheckpoint(path, "{step}", every_n_train_steps=STEPS // 2, save_top_k=-1)
        run(*cell, callbacks=[saving], enable_checkpointing=True, max_steps=STEPS // 2)
        resumed = run(*cell, ckpt_path=path / f"step={STEPS // 2}.ckpt")
        assert_same_bits(resumed)
        try:
            assert_close(resumed, uninterrupted, rtol=0, atol=0)
        except AssertionError as error:
            wrong.append(f"{cell}: {error}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    run_in_two_processes(resume, tmp_path)
