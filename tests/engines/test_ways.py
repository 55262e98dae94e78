"""Tasks take one pass each."""

import torch
from torch import nn

from tests.engines.oracle import check_tape


def test_more_tasks_than_a_loop_would_take() -> None:
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 16)).double()
    heads = nn.ModuleList(nn.Linear(16, 2) for _ in range(11)).double()
    features = trunk(torch.randn(4, 3, dtype=torch.float64))
    losses = [head(features).square().mean() for head in heads]
    named = [*trunk.named_parameters("trunk"), *heads.named_parameters("heads")]
    check_tape(losses, named, "fast", 1e-10)


def test_tasks_of_which_some_do_not_reach_all_of_the_trunk() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(3, 16).double(), nn.Linear(16, 16).double()
    heads = nn.ModuleList(nn.Linear(16, 2) for _ in range(11)).double()
    early = first(torch.randn(4, 3, dtype=torch.float64)).tanh()
    late = second(early)
    losses = [head(late if k in (0, 3, 10) else early).exp().mean() for k, head in enumerate(heads)]
    named = [*first.named_parameters("first"), *second.named_parameters("second")]
    check_tape(losses, [*named, *heads.named_parameters("heads")], "fast", 1e-10)
