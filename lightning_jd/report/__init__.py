"""One self-contained HTML page about a run: what conflicts, what the method does, what it costs."""

from pathlib import Path

from lightning_jd.errors import ArgumentError
from lightning_jd.report._page import page
from lightning_jd.report._run import Cosines, Run, Track
from lightning_jd.report._sources import RUN_FILE, read_run
from lightning_jd.report._verdict import Finding, verdict

__all__ = [
    "RUN_FILE",
    "Cosines",
    "Finding",
    "Run",
    "Track",
    "page",
    "read_run",
    "report",
    "verdict",
]


def report(run_dir: str, output: str | None = None, title: str | None = None) -> None:
    """Write one HTML page with the plots of a run and a verdict in words.

    The run is the newest one in the folder: what the callback JDReport has written, or else what
    JacobianDescent(log=True) has logged to a CSV file or to TensorBoard.

    Args:
        run_dir: The folder of the run.
        output: The file to write; jd_report.html in the folder unless given.
        title: The heading; the name of the folder unless given.
    """
    folder = Path(run_dir)
    run = read_run(folder)
    path = Path(output) if output is not None else folder / "jd_report.html"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page(run, title or folder.resolve().name), encoding="utf-8")
    except OSError as error:
        raise ArgumentError(
            f"`output` must be a file that can be written, got {str(path)!r}: {error.strerror}."
        ) from error
    for finding in verdict(run):
        print(f"{finding.question} {finding.answer}")
    print(f"Written: {path}")
