"""Small programs are solved by one thread, and everybody's threads are as before."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
import torch

from lightning_jd.linalg import (
    _cagrad,
    _dual_cone_host,
    _simplex,
    _threads,
    cagrad_weights,
    dual_cone_weights,
    min_norm_weights,
    upgrad_weights,
)
from tests.helpers.gramians import FAMILIES

Counts = tuple[int, ...]


def counts() -> Counts:
    return (torch.get_num_threads(), *(each.get_num_threads() for each in _threads._libraries()))


@pytest.fixture
def two() -> Iterator[Counts]:
    """Two threads for everybody, as on a machine with two cores."""
    before = counts()
    torch.set_num_threads(2)
    for library in _threads._libraries():
        library.set_num_threads(2)
    yield counts()
    torch.set_num_threads(before[0])
    for library, count in zip(_threads._libraries(), before[1:], strict=True):
        library.set_num_threads(count)


G = FAMILIES["conflicting"](40, 0)
MEAN = torch.full((40,), 1 / 40, dtype=torch.float64)
PROGRAMS: dict[str, tuple[Any, str, Callable[[], object]]] = {
    "upgrad": (_dual_cone_host, "_host.solve", lambda: upgrad_weights(G)),
    "dualproj": (_dual_cone_host, "solve_single", lambda: dual_cone_weights(G, MEAN)),
    "mgda": (_simplex, "solve_single", lambda: min_norm_weights(G)),
    "cagrad": (_cagrad, "unit_diagonal", lambda: cagrad_weights(G, 0.5)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_has_one_thread_and_gives_the_others_back(
    name: str, two: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, inner, solve = PROGRAMS[name]
    *path, attribute = inner.split(".")
    for part in path:
        module = getattr(module, part)
    original, seen = getattr(module, attribute), []

    def watched(*args: Any, **kwargs: Any) -> Any:
        seen.append(counts())
        return original(*args, **kwargs)

    monkeypatch.setattr(module, attribute, watched)
    assert set(two) == {2}, "BLAS refuses two threads: nothing is tested here"
    solve()
    assert set(seen[0]) == {1}
    assert counts() == two


def test_of_two_threads_the_first_one_restores(two: Counts) -> None:
    inside, over = Event(), Event()

    @_threads.by_one_thread
    def second(gramian: torch.Tensor) -> Counts:
        inside.set()
        assert over.wait(timeout=120)
        return counts()

    @_threads.by_one_thread
    def first(gramian: torch.Tensor, pool: ThreadPoolExecutor) -> "Future[Counts]":
        other = pool.submit(second, G)
        assert inside.wait(timeout=120)
        assert set(counts()) == {1}
        return other

    with ThreadPoolExecutor(1) as pool:
        other = first(G, pool)
        assert counts() == two  # the second one is still inside
        over.set()
        other.result()
    assert counts() == two


def test_importing_changes_nothing() -> None:
    code = (
        "import torch, numpy; from threadpoolctl import threadpool_info as info\n"
        "before = [(each['filepath'], each['num_threads']) for each in info()]\n"
        "import lightning_jd, lightning_jd.linalg, lightning_jd.aggregators\n"
        "after = {each['filepath']: each['num_threads'] for each in info()}\n"
        "assert before and all(after[path] == count for path, count in before)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
