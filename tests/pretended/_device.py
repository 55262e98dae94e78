"""The device as torch knows it: a name, a module of functions, and a thread of autograd."""

from typing import Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from tests.pretended import _synchronisations

NAME = "pretended"


class _Stream:
    """In a device that works at once, all streams are one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def synchronize(self) -> None:
        _synchronisations.record("synchronize")

    def wait_stream(self, other: "_Stream") -> None:
        pass

    def wait_event(self, event: "_Event") -> None:
        pass

    def record_event(self, event: "_Event | None" = None) -> "_Event":
        return event or _Event()

    def __enter__(self) -> "_Stream":
        return self

    def __exit__(self, *error: object) -> None:
        pass


class _Event:
    """A mark in the stream; only waiting for it on the host is a synchronisation."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record(self, stream: _Stream | None = None) -> None:
        pass

    def wait(self, stream: _Stream | None = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        _synchronisations.record("synchronize")


class _Module:
    """What ``torch.pretended`` offers, after the example of ``torch.cuda``."""

    Stream, Event = _Stream, _Event
    _stream = _Stream()

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def set_device(self, device: Any) -> None:
        pass

    def device(self, index: Any) -> _Stream:
        return self._stream  # a context that changes nothing

    def get_device_name(self, device: Any = None) -> str:
        return "pretended accelerator"

    def current_stream(self, device: Any = None) -> _Stream:
        return self._stream

    def stream(self, stream: _Stream) -> _Stream:
        return stream

    def synchronize(self, device: Any = None) -> None:
        _synchronisations.record("synchronize")

    def manual_seed_all(self, seed: int) -> None:
        pass  # it draws from the generator of the CPU, which is seeded with it

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


_setup_privateuseone_for_python_backend(rename=NAME, backend_module=_Module())
DEVICE = torch.device(NAME, 0)
