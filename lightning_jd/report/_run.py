"""A run as the report sees it: named curves, the matrix of cosines, and the name of the method."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_jd.errors import ArgumentError

_BINS = 256


@dataclass
class Track:
    """One curve, in at most 256 bins of equally many steps.

    When a step lies beyond the last bin, neighbouring bins are merged, so memory is constant.

    Attributes:
        width: The number of steps per bin.
        sums: The sum of the values in each bin.
        squares: The sum of their squares.
        counts: The number of values.

    Example:
        >>> track = Track()
        >>> for step, value in enumerate([1.0, 3.0, 5.0]):
        ...     track.add(step, value)
        >>> track.mean(), track.points()[-1]
        (3.0, (2.0, 5.0, 0.0))
    """

    width: int = 1
    sums: list[float] = field(default_factory=list)
    squares: list[float] = field(default_factory=list)
    counts: list[float] = field(default_factory=list)

    def add(self, step: int, value: float) -> None:
        """Record a value; NaN and infinity are ignored."""
        if not math.isfinite(value):
            return
        while step // self.width >= _BINS:
            self.width *= 2
            for row in (self.sums, self.squares, self.counts):
                row[:] = [sum(row[i : i + 2]) for i in range(0, len(row), 2)]
        place = step // self.width
        missing = place + 1 - len(self.counts)
        for row in (self.sums, self.squares, self.counts):
            row.extend([0.0] * missing)
        self.sums[place] += value
        self.squares[place] += value * value
        self.counts[place] += 1

    def mean(self) -> float:
        """The mean of all values; NaN without any."""
        return sum(self.sums) / sum(self.counts) if self.counts else math.nan

    def points(self, most: int = _BINS) -> list[tuple[float, float, float]]:
        """Middle step, mean and standard deviation of every non-empty bin.

        Args:
            most: Merge neighbouring bins until at most this many remain.
        """
        together = max(1, math.ceil(len(self.counts) / most))
        found = []
        for start in range(0, len(self.counts), together):
            part = slice(start, start + together)
            if count := sum(self.counts[part]):
                mean = sum(self.sums[part]) / count
                spread = math.sqrt(max(sum(self.squares[part]) / count - mean * mean, 0.0))
                stretches = len(self.counts[part])
                found.append(((start + stretches / 2) * self.width - 0.5, mean, spread))
        return found


@dataclass(frozen=True)
class Cosines:
    """Mean cosines between the gradients of named tasks; ``None`` for pairs that never occurred."""

    names: Sequence[str]
    matrix: Sequence[Sequence[float | None]]


@dataclass
class Run:
    """The recorded data of a run, for the report.

    Attributes:
        aggregator: The name of the aggregator, if known.
        tracks: The curves by logged name, without ``jd/``.
        cosines: The mean cosines between tasks.
        method: What the method claims: ``protects``, ``kind``, and ``reg`` and ``relative_to``
            where it has them.
        about: What was run, in words: module, optimizer, versions, ...
        examples: The examples of the last epoch that are most in conflict: ``index``, ``worse``,
            ``alignment``, ``norm`` and ``loss``.
    """

    aggregator: str | None = None
    tracks: dict[str, Track] = field(default_factory=dict)
    cosines: Cosines | None = None
    method: dict[str, Any] = field(default_factory=dict)
    about: dict[str, str] = field(default_factory=dict)
    examples: list[dict[str, float | None]] = field(default_factory=list)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Record the values of one step."""
        for name, value in values.items():
            self.tracks.setdefault(name, Track()).add(step, value)

    def mean(self, name: str) -> float:
        """The mean of a curve; NaN if it does not exist."""
        return self.tracks[name].mean() if name in self.tracks else math.nan

    def members(self, prefix: str) -> dict[str, Track]:
        """The curves with a prefix (such as ``"weight/"``), by the rest of their names."""
        return {
            name.removeprefix(prefix): track
            for name, track in self.tracks.items()
            if name.startswith(prefix)
        }

    def to_dict(self) -> dict[str, Any]:
        """The run in JSON types."""
        cosines = self.cosines
        return {
            "aggregator": self.aggregator,
            "tracks": {name: vars(track) for name, track in self.tracks.items()},
            "cosines": None if cosines is None else vars(cosines),
            "method": self.method,
            "about": self.about,
            "examples": self.examples,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Run:
        """The inverse of :meth:`to_dict`."""
        cosines = content["cosines"]
        return cls(
            content["aggregator"],
            {name: Track(**track) for name, track in content["tracks"].items()},
            None if cosines is None else Cosines(**cosines),
            dict(content.get("method", {})),  # 0.2 wrote none of the three
            dict(content.get("about", {})),
            list(content.get("examples", [])),
        )

    def write(self, path: Path) -> None:
        """Write the run as JSON."""
        path.write_text(json.dumps(self.to_dict(), allow_nan=False) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Run:
        """Read a run that :meth:`write` has written.

        Raises:
            ArgumentError: If the file is not such a run.
        """
        try:
            return cls.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ArgumentError(
                f"`run_dir` must hold a run that JDReport has written, got {path}, which cannot be "
                f"read ({type(error).__name__}: {error})."
            ) from error
