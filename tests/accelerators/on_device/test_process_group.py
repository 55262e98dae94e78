"""The strict process group itself: it takes what NCCL takes, and refuses the rest."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing import assert_close

from tests.pretended import DEVICE, host, no_synchronisation
from tests.pretended.processes import run_on_two_devices


def manners(rank: int, folder: Path) -> None:
    x = torch.arange(1.0, 3.0, device=DEVICE) * (rank + 1)
    refused: dict[str, Any] = {
        "tensors must be on pretended": lambda: dist.all_reduce(torch.ones(2)),
        "the type must be one of NCCL's": lambda: dist.all_reduce(x.to(torch.int16)),
        "tensors must be contiguous": lambda: dist.all_reduce(torch.ones(2, 3, device=DEVICE).T),
        "the reduction must be one of NCCL's": lambda: dist.all_reduce(
            x.to(torch.int64), dist.ReduceOp.BOR
        ),
        "cannot receive from whoever": lambda: dist.recv(x),
        "monitored_barrier is only implemented for GLOO": lambda: dist.monitored_barrier(),
    }
    for message, ask in refused.items():
        with pytest.raises((RuntimeError, ValueError), match=message):
            ask()
    with pytest.raises(RuntimeError, match="tensors must be on pretended"):
        dist.all_gather([torch.zeros(2), torch.zeros(2)], torch.ones(2))


def verbs(rank: int, folder: Path) -> None:
    def x() -> torch.Tensor:
        return torch.arange(1.0, 3.0, device=DEVICE) * (rank + 1)

    base = torch.arange(1.0, 3.0)
    reduced = x()
    with no_synchronisation():
        dist.all_reduce(reduced)
        later = dist.all_reduce(x(), dist.ReduceOp.MAX, async_op=True)
        later.wait()
    assert_close(host(reduced), 3 * base)
    averaged = x()
    dist.all_reduce(averaged, dist.ReduceOp.AVG)
    assert_close(host(averaged), 1.5 * base)
    gathered = [torch.zeros(2, device=DEVICE) for _ in range(2)]
    dist.all_gather(gathered, x())
    assert_close([host(each) for each in gathered], [base, 2 * base])
    told = x()
    dist.broadcast(told, 1)
    assert_close(host(told), 2 * base)
    arrived = torch.zeros(2 if rank == 0 else 4, device=DEVICE)
    sent = torch.arange(3.0, device=DEVICE) + 10 * rank
    dist.all_to_all_single(arrived, sent, [1, 1] if rank == 0 else [2, 2], [1, 2])
    assert_close(host(arrived), torch.tensor([[0.0, 10.0], [1.0, 2.0, 11.0, 12.0]][rank]))
    other = torch.zeros(2, device=DEVICE)
    operations = [dist.P2POp(dist.isend, x(), 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)]
    for request in dist.batch_isend_irecv(operations):
        request.wait()
    assert_close(host(other), (2 - rank) * base)
    objects: list[Any] = [None, None]
    dist.all_gather_object(objects, {"rank": rank})  # as bytes on the device
    assert objects == [{"rank": 0}, {"rank": 1}]
    dist.barrier()


def trains_in_parallel(rank: int, folder: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    twin = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    twin.load_state_dict(net.state_dict())
    data = torch.randn(2, 5, 3)
    twin(data.flatten(0, 1)).square().mean().backward()
    parallel = nn.parallel.DistributedDataParallel(net.to(DEVICE))
    with no_synchronisation():
        x = data[rank].to(DEVICE, non_blocking=True)
        parallel(x).square().mean().backward()
    found = [host(p.grad) for p in net.parameters()]
    assert_close(found, [p.grad for p in twin.parameters()])


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("work", [manners, verbs, trains_in_parallel])
def test_between_two_processes(work: Any, tmp_path: Path) -> None:
    run_on_two_devices(work, tmp_path)
