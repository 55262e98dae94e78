"""Small dense algebra is done by one thread, whatever the defaults of torch and NumPy are.

A program of a hundred unknowns is a hundred tiny products. Shared between threads, each of them is
a wait, which takes many times as long as the product where other processes want the cores too. With
1,024 unknowns two threads save up to a third on an idle machine, and take two to six times as long
on a busy one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from threading import Lock
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_jd.linalg._lapack import routines

P = ParamSpec("P")
Matrix = TypeVar("Matrix", Tensor, NDArray[np.float64])
Answer = TypeVar("Answer")

TINY = 16  # up to this size no library thinks of threads


def by_one_thread(
    solve: Callable[Concatenate[Matrix, P], Answer],
) -> Callable[Concatenate[Matrix, P], Answer]:
    """Let a function of a Gramian compute with one thread.

    The numbers of threads are as before when it returns; nothing is changed by importing.
    """

    @wraps(solve)
    def limited(gramian: Matrix, /, *args: P.args, **kwargs: P.kwargs) -> Answer:
        if gramian.shape[0] <= TINY:
            return solve(gramian, *args, **kwargs)
        with _OneThread():
            return solve(gramian, *args, **kwargs)

    return limited


class _OneThread:
    """One thread for torch and for the BLAS of NumPy and SciPy, inside of the block.

    Those of torch belong to the thread that asks. Those of BLAS belong to the process: where
    several threads are inside, the first one changes and restores them, and the others do neither.
    """

    _free = Lock()

    def __enter__(self) -> None:
        self._blas: list[tuple[Any, int]] = []
        self._is_first = self._free.acquire(blocking=False)
        if self._is_first:
            counted = [(library, library.get_num_threads()) for library in _libraries()]
            self._blas = [(library, count) for library, count in counted if count != 1]
            for library, _ in self._blas:
                library.set_num_threads(1)
        self._threads = torch.get_num_threads()
        if self._threads != 1:
            torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        if self._threads != 1:
            torch.set_num_threads(self._threads)
        for library, count in self._blas:
            library.set_num_threads(count)
        if self._is_first:
            self._free.release()


@cache
def _libraries() -> list[Any]:
    """What NumPy and SciPy multiply with; found once, after SciPy has loaded its own."""
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    routines()
    return list(ThreadpoolController().select(user_api="blas").lib_controllers)
