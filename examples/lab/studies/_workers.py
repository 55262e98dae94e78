"""The crew of a study with one objective per image."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from torch import Tensor

from examples.lab.crew import Crew, hired
from examples.lab.data import Images, load, paper_subset
from examples.lab.studies._rates import Trained
from examples.lab.studies._run import Outcome, Run
from examples.lab.studies._settings import Setting
from examples.lab.studies._store import Runs, stored_runs
from examples.lab.studies._training import train
from examples.lab.work.paper import ARCHITECTURES


def crew_of(store: Runs, trained: Trained, announce: Callable[[str], None]) -> Crew[Run, Outcome]:
    """A crew; a run that raises has an infinite area."""
    return Crew(store, trained, announce, _label, Outcome([], [], [], [], [], end="diverged"))


def _label(run: Run) -> str:
    return f"seed {run.seed} {Setting(run.aggregator, run.reg).label}, lr {run.lr:.2g}"


@contextmanager
def crew(
    dataset: str,
    folder: str,
    size: int,
    store: Path,
    workers: int,
    announce: Callable[[str], None],
) -> Iterator[Crew[Run, Outcome]]:
    """Open a crew; with one worker it trains in this process, with more in others.

    Args:
        dataset: Name of the dataset.
        folder: Where its official files are.
        size: The number of images in a run.
        store: The file of finished runs.
        workers: How many runs are trained at a time.
        announce: Called with a description when a run is finished.

    Raises:
        ArgumentError: If there is no worker, files are missing or damaged, or have too few images.
    """
    # Also before other processes do: one clear message, not many.
    paper_subset(load(dataset, folder), seed=1, size=size)
    with hired(workers, _Trainer.of, dataset, folder) as trained:
        yield crew_of(stored_runs(store), trained, announce)


class _Trainer:
    """Trains runs in this process."""

    def __init__(self, split: Images) -> None:
        self._split = split
        self._subset = lru_cache(maxsize=4)(self._draw)

    @classmethod
    def of(cls, dataset: str, folder: str) -> "_Trainer":
        return cls(load(dataset, folder))

    def _draw(self, seed: int, size: int) -> tuple[Tensor, Tensor]:
        return paper_subset(self._split, seed, size)

    def __call__(self, run: Run, rival: Sequence[float] | None) -> Outcome:
        images, labels = self._subset(run.seed, run.size)
        return train(run, ARCHITECTURES[run.dataset], images, labels, rival)
