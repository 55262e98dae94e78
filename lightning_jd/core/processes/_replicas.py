"""Do all processes hold the same parameters, bit for bit?"""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_jd.core.processes._pool import Pool
from lightning_jd.engines import NamedParameters
from lightning_jd.errors import ReplicaError

#: Numbers that are looked at in one go.
_BLOCK = 2**20
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def check_replicas(named: NamedParameters) -> None:
    """Compare the parameters of all processes by their checksums.

    Every process reads its parameters once and sends one number; if they differ, one number per
    parameter.

    Args:
        named: The parameters of this process.

    Raises:
        ReplicaError: If a parameter is not the same on all processes; it names the first of them.
    """
    if not named or Pool().size == 1:
        return
    pool = Pool(named[0][1].device)
    sums = torch.stack([checksum(tensor).to(named[0][1].device) for _, tensor in named])
    everyone = torch.zeros(pool.size, dtype=torch.int64, device=sums.device)
    everyone[pool.rank] = checksum(sums)
    everyone = pool.sum(everyone, "replicas")
    if bool((everyone == everyone[0]).all()):
        return
    table = torch.tensor(pool.gather(tuple(sums.tolist())))  # (processes, parameters)
    differ = (table != table[0]).any(dim=0).nonzero().flatten().tolist()
    ranks = (table[:, differ[0]] != table[0, differ[0]]).nonzero().flatten().tolist()
    raise ReplicaError(
        f"All processes must hold the same parameters, got {len(differ)} of {len(named)} that "
        f"differ. The first is {named[differ[0]][0]!r}, which process {ranks[0]} has with other "
        "values than process 0. Look for code that changes parameters or gradients outside of the "
        "optimizer and differently on each process (hooks, clipping by hand, random numbers). If "
        "they are meant to differ, set check_replicas=0."
    )


def checksum(tensor: Tensor) -> Tensor:
    """A number that almost surely changes if a bit of the tensor does, or two entries are swapped.

    Example:
        >>> a, b = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])
        >>> bool(checksum(a) == checksum(a.clone())), bool(checksum(a) == checksum(b))
        (True, False)
    """
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    bits = tensor.contiguous().view(-1).view(_INTEGERS[tensor.element_size()])
    # The same random odd factors everywhere; integers wrap around, also in the same way everywhere.
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(2**62, (min(len(bits), _BLOCK),), generator=generator) * 2 + 1
    factors = factors.to(tensor.device)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for block in bits.split(_BLOCK):
        total = total * 1_000_003 + (block * factors[: len(block)]).sum()
    return total
