"""The HTML report of a run: conflict, effect of the method, and cost."""

from pathlib import Path

from lightning_jd.errors import ArgumentError
from lightning_jd.report._comparison import Table, comparison_page, front_page, mean_and_error
from lightning_jd.report._page import page
from lightning_jd.report._promise import Problem, problems, suffering
from lightning_jd.report._run import Cosines, Run, Track
from lightning_jd.report._scatter import Point
from lightning_jd.report._sources import RUN_FILE, read_run
from lightning_jd.report._verdict import Finding, verdict

__all__ = [
    "RUN_FILE",
    "Cosines",
    "Finding",
    "Point",
    "Problem",
    "Run",
    "Table",
    "Track",
    "comparison_page",
    "front_page",
    "mean_and_error",
    "page",
    "problems",
    "read_run",
    "report",
    "suffering",
    "verdict",
]


def report(
    run_dir: str,
    output: str | None = None,
    title: str | None = None,
    other: str | None = None,
) -> None:
    """Write the HTML report of a run, or of two side by side: plots and a verdict in words.

    It uses the newest run in the folder: the file of the callback JDReport, or else what
    JacobianDescent(log=True) has logged to CSV or TensorBoard files.

    Args:
        run_dir: The folder of the run.
        output: The file to write; jd_report.html in the folder by default.
        title: The heading; the name of the folder by default.
        other: The folder of another run, to be shown beside it.
    """
    folder = Path(run_dir)
    run = read_run(folder)
    name = title or folder.resolve().name
    if other is None:
        runs, html = [run], page(run, name)
    else:
        beside = Path(other)
        runs = [run, read_run(beside)]
        name, other_name = _names_apart(folder.resolve(), beside.resolve())
        html = page(run, title or name, runs[1], other_name)
    path = Path(output) if output is not None else folder / "jd_report.html"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(html, encoding="utf-8")
    except OSError as error:
        raise ArgumentError(
            f"`output` must be a file that can be written, got {str(path)!r}: {error.strerror}."
        ) from error
    for each in runs:
        print(f"{each.aggregator or 'an unnamed method'}:")
        for finding in verdict(each):
            remedy = f" {finding.remedy}" if finding.remedy else ""
            print(f"  {finding.question} {finding.answer}{remedy}")
    print(f"Written: {path}")


def _names_apart(first: Path, second: Path) -> tuple[str, str]:
    """The last parts of two paths, as many as it takes to tell ``version_0`` from another one.

    Example:
        >>> _names_apart(Path("logs/mean/version_0"), Path("logs/upgrad/version_0"))
        ('mean/version_0', 'upgrad/version_0')
    """
    for count in range(1, max(len(first.parts), len(second.parts))):
        names = ["/".join(path.parts[-count:]) for path in (first, second)]
        if names[0] != names[1]:
            break
    return names[0], names[1]
