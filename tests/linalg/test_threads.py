"""Small programs are solved by one thread, and everybody's threads are as before."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch

from lightning_jd import backward
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
from tests.helpers.two_processes import run_in_two_processes

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


@pytest.mark.parametrize("m", [17, 511, 600])
def test_of_any_size_a_program_has_one_thread(m: int, two: Counts) -> None:
    seen = _threads.by_one_thread(lambda gramian: counts())(torch.eye(m))
    assert set(seen) == {1}
    assert counts() == two


def test_importing_changes_nothing() -> None:
    code = (
        "import torch, numpy; from threadpoolctl import threadpool_info as info\n"
        "before = [(each['filepath'], each['num_threads']) for each in info()]\n"
        "import lightning_jd, lightning_jd.linalg, lightning_jd.aggregators\n"
        "after = {each['filepath']: each['num_threads'] for each in info()}\n"
        "assert before and all(after[path] == count for path, count in before)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


WORK = """
import torch
from threadpoolctl import threadpool_info
from lightning_jd import backward
from lightning_jd.aggregators import UPGrad


def counts():
    return {each["filepath"]: each["num_threads"] for each in threadpool_info()}


def keeps_its_threads():
    # The first use loads the BLAS of SciPy, whose threads nobody has set.
    before, of_torch = counts(), torch.get_num_threads()
    model = torch.nn.Linear(5, 1)
    backward(model(torch.randn(40, 5)).square().flatten(), model, "upgrad")
    J = torch.randn(100, 120)
    UPGrad().weights(J @ J.T)
    after = counts()
    assert all(after[path] == count for path, count in before.items()), (before, after)
    assert torch.get_num_threads() == of_torch
    return of_torch


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return keeps_its_threads()
"""


def test_a_process_a_thread_and_a_worker_of_a_loader_keep_their_threads(tmp_path: Path) -> None:
    """A notebook computes in its main thread and in others, a loader in a process with one."""
    (tmp_path / "work.py").write_text(WORK)
    code = (
        "import torch\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from work import Data, keeps_its_threads\n"
        "if __name__ == '__main__':\n"
        "    torch.set_num_threads(2)\n"
        "    for start in ('fork', 'spawn'):\n"
        "        loader = torch.utils.data.DataLoader(\n"
        "            Data(), num_workers=1, multiprocessing_context=start)\n"
        "        assert [int(batch) for batch in loader] == [1, 1]\n"
        "    assert keeps_its_threads() == 2\n"
        "    with ThreadPoolExecutor(1) as pool:\n"
        "        pool.submit(keeps_its_threads).result()\n"
        "    assert torch.get_num_threads() == 2\n"
    )
    (tmp_path / "main.py").write_text(code)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    subprocess.run(
        [sys.executable, "main.py"],
        check=True,
        timeout=180,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "2"},
    )


def _keeps_its_threads(rank: int, folder: Path) -> None:
    torch.set_num_threads(2)
    counts()  # loads all libraries
    before = counts()
    model = torch.nn.Linear(5, 1)
    backward(model(torch.randn(20, 5)).square().flatten(), model, "upgrad")
    assert counts() == before
    torch.set_num_threads(1)


def test_a_process_of_ddp_keeps_its_threads(tmp_path: Path) -> None:
    run_in_two_processes(_keeps_its_threads, tmp_path)
