"""Every test starts from the same seed and leaves no global state behind."""

import os
from collections.abc import Iterator

# Tensors are small here, and processes many: threads that wait for each other cost more than they
# bring. It must be said before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
import torch.distributed as dist

#: Whoever imports it registers a device in this process; see ``tests/accelerators``.
collect_ignore = ["pretended"]


@pytest.fixture(autouse=True)
def _same_start_and_nothing_left_behind() -> Iterator[None]:
    torch.manual_seed(0)
    dtype, grad = torch.get_default_dtype(), torch.is_grad_enabled()
    yield
    assert torch.get_default_dtype() == dtype, "the test leaves another default dtype behind"
    assert torch.is_grad_enabled() == grad, "the test leaves gradients switched off"
    initialized = dist.is_available() and dist.is_initialized()
    if initialized:
        dist.destroy_process_group()
    assert not initialized, "the test leaves a process group behind"
