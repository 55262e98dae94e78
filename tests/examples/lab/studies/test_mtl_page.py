"""docs/mtl.md is what docs/mtl.py writes from the saved results."""

import gzip
from pathlib import Path

from examples.lab.studies.multitask._page import label_of
from examples.lab.studies.multitask._trial import stored_trials
from tests.examples.lab.studies.test_paper_page import DOCS, script_of


def test_the_page_is_written_by_its_script() -> None:
    assert (DOCS / "mtl.md").read_text(encoding="utf-8") == script_of("mtl").page()


def test_every_figure_of_the_page_is_there() -> None:
    page = (DOCS / "mtl.md").read_text(encoding="utf-8")
    figures = [part.partition(")")[0] for part in page.split("](figures/")[1:]]
    assert all((DOCS / "figures" / name).is_file() for name in figures)


def test_the_commands_of_the_page_are_those_that_were_run() -> None:
    script = script_of("mtl")
    for name, command in script.COMMANDS.items():
        path = DOCS / "mtl" / f"{name}.json"
        if path.exists():
            options = dict(zip(command.split()[::2], command.split()[1::2], strict=True))
            told = (
                f"{options['--size']} training instances, at most {options['--epochs']} epochs of "
                f"batches of {options.get('--batch-size', '128')}, means over 3 seed(s)."
            )
            assert script.Report.read(path).notes[0].startswith(told), name


def test_a_study_goes_on_from_the_runs_that_are_packed(tmp_path: Path) -> None:
    for packed in (DOCS / "mtl").glob("*.jsonl.gz"):
        path = tmp_path / packed.stem
        path.write_bytes(gzip.decompress(packed.read_bytes()))
        report = script_of("mtl").Report.read(packed.with_name(packed.name.removesuffix("l.gz")))
        best = {row["method"] for row in report.rows} - {"single task"}
        assert {label_of(trial.method) for trial, _ in stored_trials(path).items()} >= best
