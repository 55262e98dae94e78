"""A table of measurements: on the terminal, as Markdown, and as JSON with its environment."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from examples.lab.console import console
from examples.lab.environment import environment
from lightning_jd.errors import ArgumentError

Value = str | int | float | bool | None


@dataclass(frozen=True)
class Report:
    """Rows of numbers with a heading each, and what they were measured on.

    Args:
        name: Short name, also the stem of the files, e.g. ``"weights"``.
        title: One line that says what is compared.
        columns: Key of a row to the heading of its column; keys that are not here are only in
            the JSON file.
        rows: One mapping per line of the table.
        notes: Sentences below the table: how to read it, what was missed.
        environment: Versions and processor; measured where the report is made.
        brief: Fewer columns for a terminal, which is narrow; empty shows the same.

    Example:
        >>> report = Report("demo", "Ours against theirs", {"m": "m", "ratio": "times faster"},
        ...                 [{"m": 8, "ratio": 3.14159}, {"m": 32, "ratio": None}], ("Wall time.",))
        >>> print(report.markdown().split("## Environment")[0].strip())
        # Ours against theirs
        <BLANKLINE>
        | m | times faster |
        |---|---|
        | 8 | 3.14 |
        | 32 | - |
        <BLANKLINE>
        Wall time.
    """

    name: str
    title: str
    columns: Mapping[str, str]
    rows: Sequence[Mapping[str, Value]]
    notes: Sequence[str] = ()
    environment: Mapping[str, str | int] = field(default_factory=environment)
    brief: Mapping[str, str] = field(default_factory=dict)

    def print(self) -> None:
        """Print the table on the terminal.

        Raises:
            MissingDependencyError: If ``rich`` is not installed.
        """
        terminal = console()
        from rich import box
        from rich.table import Table

        table = Table(title=self.title, title_justify="left", box=box.SIMPLE_HEAD)
        table.padding = (0, 1, 0, 0)
        columns = self.brief or self.columns
        for heading in columns.values():
            # One word per line: the numbers decide the width of a column, not its heading.
            table.add_column(heading.replace(" ", "\n"), justify="right", no_wrap=True)
        for cells in self._cells(columns):
            table.add_row(*cells)
        terminal.print(table)
        for note in self.notes:
            terminal.print(note, markup=False)

    def publish(self, folder: str | Path, *others: Path) -> None:
        """Print the table, write it, and say where to, with what else was written there."""
        self.print()
        written = ", ".join(map(str, (*self.write(folder), *others)))
        console().print(f"Wrote {written}.", markup=False, soft_wrap=True)

    def markdown(self) -> str:
        """The table, the notes and the environment as one page."""
        head = f"| {' | '.join(self.columns.values())} |\n|{'---|' * len(self.columns)}"
        lines = [f"| {' | '.join(cells)} |" for cells in self._cells(self.columns)]
        machine = [f"| {key} | {value} |" for key, value in self.environment.items()]
        blocks = [
            f"# {self.title}",
            "\n".join([head, *lines]),
            *self.notes,
            "## Environment",
            "\n".join(["| what | version |\n|---|---|", *machine]),
        ]
        return "\n\n".join(blocks) + "\n"

    def write(self, folder: str | Path) -> tuple[Path, Path]:
        """Write ``<name>.json`` (every value, unrounded) and ``<name>.md``; return both paths."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        data, page = folder / f"{self.name}.json", folder / f"{self.name}.md"
        content = {
            "name": self.name,
            "title": self.title,
            "environment": dict(self.environment),
            "columns": dict(self.columns),
            "rows": [dict(row) for row in self.rows],
            "notes": list(self.notes),
            "brief": dict(self.brief),
        }
        data.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        page.write_text(self.markdown(), encoding="utf-8")
        return data, page

    @classmethod
    def read(cls, path: str | Path) -> "Report":
        """Read what :meth:`write` has written.

        Raises:
            ArgumentError: If the file is no report.
        """
        try:
            return cls(**json.loads(Path(path).read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise ArgumentError(
                f"`path` must be a JSON report of `python -m examples.lab`, got {path}: {error}."
            ) from error

    def _cells(self, keys: Iterable[str]) -> list[list[str]]:
        return [[_shown(row.get(key)) for key in keys] for row in self.rows]


def _shown(value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, float):
        return str(value)
    if 0 < abs(value) < 1e-4:
        return f"{value:.1e}"
    if 1e3 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value + 0.0:.3g}"  # the sum turns -0.0 into 0.0
