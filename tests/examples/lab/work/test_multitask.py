"""Networks with a trunk and a head per task."""

import pytest
import torch

from examples.lab.work.multitask import NETWORKS, Columns, Multihead, multitask_network
from lightning_jd import gramian

COLUMNS = Columns(numbers=3, categorical=2, categories=7)
OUTPUTS = {"first": 1, "second. of two": 4}


def inputs_of(name: str, n: int = 5) -> tuple[torch.Tensor, ...]:
    if name == "lenet":
        return (torch.randn(n, 1, 36, 36),)
    if name == "mpnn":
        elements = torch.randint(1, 6, (n, 29))
        elements[:, 9:] = 0
        return elements, 3 * torch.randn(n, 29, 3)
    return torch.randn(n, 3), torch.randint(0, 7, (n, 2))


@pytest.mark.parametrize("name", [name for names in NETWORKS.values() for name in names])
def test_one_output_per_task_and_a_trunk_for_all(name: str) -> None:
    network = multitask_network(name, OUTPUTS, COLUMNS)
    found = network(*inputs_of(name))
    assert {task: output.shape for task, output in found.items()} == {
        "first": (5, 1),
        "second. of two": (5, 4),
    }
    losses = [output.square().mean() for output in found.values()]
    shared = [p for p in network.trunk.parameters() if p.numel()]
    assert float(gramian(losses, shared)[0, 1].abs()) > 0
    alone = torch.autograd.grad(losses[0], network.heads[1].parameters(), allow_unused=True)
    assert all(gradient is None for gradient in alone)


def test_gates_belong_to_their_task() -> None:
    network = multitask_network("mmoe", OUTPUTS, COLUMNS)
    found = network(*inputs_of("mmoe"))
    gates = [list(gate.parameters()) for gate in network.trunk.gates]
    for task, (name, output) in enumerate(found.items()):
        for owner, gate in enumerate(gates):
            gradients = torch.autograd.grad(
                output.sum(), gate, retain_graph=True, allow_unused=True
            )
            assert all((g is not None) == (owner == task) for g in gradients), name


def molecules() -> Multihead:
    torch.manual_seed(0)
    return multitask_network("mpnn", {"energy": 1}).double()


def test_a_molecule_is_the_same_from_everywhere() -> None:
    network, (elements, positions) = molecules(), inputs_of("mpnn")
    positions = positions.double()
    found = network(elements, positions)["energy"]
    rotation = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))[0]
    moved = positions @ rotation + torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    torch.testing.assert_close(network(elements, moved)["energy"], found)
    order = torch.randperm(29)
    torch.testing.assert_close(network(elements[:, order], positions[:, order])["energy"], found)
