"""The HTML report of a run: conflict, effect of the method, and cost."""

from pathlib import Path

from lightning_jd.errors import ArgumentError
from lightning_jd.report._page import page
from lightning_jd.report._promise import Problem, problems, suffering
from lightning_jd.report._run import Cosines, Run, Track
from lightning_jd.report._sources import RUN_FILE, read_run
from lightning_jd.report._verdict import Finding, verdict

__all__ = [
    "RUN_FILE",
    "Cosines",
    "Finding",
    "Problem",
    "Run",
    "Track",
    "page",
    "problems",
    "read_run",
    "report",
    "suffering",
    "verdict",
]


def report(run_dir: str, output: str | None = None, title: str | None = None) -> None:
    """Write the HTML report of a run: plots and a verdict in words.

    It uses the newest run in the folder: the file of the callback JDReport, or else what
    JacobianDescent(log=True) has logged to CSV or TensorBoard files.

    Args:
        run_dir: The folder of the run.
        output: The file to write; jd_report.html in the folder by default.
        title: The heading; the name of the folder by default.
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
