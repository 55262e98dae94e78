"""Two nodes (two agents of torchrun on loopback) and two workers of Ray Train, against one process.

Each process runs this file as a script, or `trained` as the loop of a worker.
"""

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_jd.surfaces import JacobianDescent
from tests.helpers.halves import shared_batches
from tests.helpers.lightning import Regression, trainer, weights
from tests.helpers.two_processes import leave

ROOT = Path(__file__).parents[2]
FORMS: list[Any] = ["instances", "tasks"]


class WithData(Regression):
    """The data are read in the process that trains."""

    def train_dataloader(self) -> Any:
        return shared_batches()


def trained(form: Any, **arguments: Any) -> dict[str, Tensor]:
    module = WithData(form).double()
    arguments |= {"callbacks": [JacobianDescent()], "precision": "64-true", "max_epochs": 1}
    trainer(**arguments).fit(module)
    return weights(module)


def assert_equal_to_one_process(folder: Path) -> None:
    for rank in range(2):
        for form in FORMS:
            found = torch.load(folder / f"{form}{rank}.pt")
            assert_close(found, trained(form), rtol=0, atol=1e-10)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
def test_two_nodes(tmp_path: Path) -> None:
    port = free_port()
    agents = [
        subprocess.Popen(
            [
                *[sys.executable, "-m", "torch.distributed.run", "--nnodes=2"],
                *[
                    "--nproc_per_node=1",
                    f"--node_rank={node}",
                    "--master_addr=127.0.0.1",
                    f"--master_port={port}",
                ],
                *["-m", "tests.surfaces.test_clusters", str(tmp_path)],
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node in range(2)
    ]
    try:
        outputs = [agent.communicate(timeout=900)[0] for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    assert [agent.returncode for agent in agents] == [0, 0], outputs
    assert_equal_to_one_process(tmp_path)


def on_a_node(folder: Path) -> None:
    for form in FORMS:
        found = trained(form, strategy="ddp", devices=1, num_nodes=2)
        rank = torch.distributed.get_rank()
        torch.save(found, folder / f"{form}{rank}.pt")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray
def test_ray_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray.train.torch", exc_type=ImportError)
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    environment = {"env_vars": {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}}
    ray.init(num_cpus=2, include_dashboard=False, runtime_env=environment, log_to_driver=False)
    try:
        TorchTrainer(
            on_a_worker,
            train_loop_config={"folder": str(tmp_path)},
            scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
            run_config=RunConfig(storage_path=str(tmp_path / "ray")),
        ).fit()
    finally:
        ray.shutdown()
    assert_equal_to_one_process(tmp_path)


def on_a_worker(config: dict[str, str]) -> None:
    from ray.train import get_context
    from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment

    for form in FORMS:
        found = trained(
            form, strategy=RayDDPStrategy(), plugins=[RayLightningEnvironment()], devices="auto"
        )
        torch.save(found, Path(config["folder"]) / f"{form}{get_context().get_world_rank()}.pt")


if __name__ == "__main__":
    on_a_node(Path(sys.argv[1]))
    torch.distributed.destroy_process_group()
    leave()
