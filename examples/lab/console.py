"""The terminal: tables and progress bars need ``rich``, which only the command line asks for."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from lightning_jd.errors import MissingDependencyError

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH_OF_FILES = 160  # a table that is redirected to a file need not be cut to a screen


def console(*, stderr: bool = False) -> "Console":
    """Open the terminal.

    Raises:
        MissingDependencyError: If ``rich`` is not installed.
    """
    try:
        from rich.console import Console
    except ImportError as error:
        raise MissingDependencyError.of("The table", "rich", "lab") from error
    terminal = Console(stderr=stderr)
    if not terminal.is_terminal:
        terminal.width = _WIDTH_OF_FILES
    return terminal


@contextmanager
def progress_bar(
    total: int, done: int = 0, counts: Literal["started", "finished"] = "started"
) -> Iterator[Callable[[str], None]]:
    """Show a bar with elapsed and remaining time while the block runs.

    Args:
        total: The number of units of work; the bar grows if more are started.
        done: How many of them an earlier run has finished.
        counts: Whether the function is called when a unit is started, one after the other, or when
            it is finished, for units that are worked on at the same time.

    Yields:
        A function that is called with a description of each unit.

    Raises:
        MissingDependencyError: If ``rich`` is not installed.
    """
    # On stderr, so that a table on stdout can be redirected without the bar.
    terminal = console(stderr=True)
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=terminal) as bar:
        task = bar.add_task("starting", total=total, completed=done)
        started = 0

        def start(description: str) -> None:
            nonlocal started
            planned = max(total, done + started + 1)
            finished = done + started + (counts == "finished")
            bar.update(task, description=description, completed=finished, total=planned)
            started += 1

        yield start
        bar.update(task, description="done", completed=done + started, total=done + started)
