"""Pictures need ``matplotlib``, which only an extra of the package asks for."""

from pathlib import Path
from typing import TYPE_CHECKING

from lightning_jd.errors import MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check_matplotlib(what: str = "The figure") -> None:
    """Raise if there is nothing to draw with: before the work, not after it.

    Raises:
        MissingDependencyError: If ``matplotlib`` is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError.of(what, "matplotlib", "plot") from error


def new_figure(width: float, height: float, title: str) -> "Figure":
    """An empty figure, without global state, and without a window on a machine without a screen."""
    check_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, fontsize="medium")
    return figure


def save_figure(figure: "Figure", path: Path, dpi: int = 110) -> Path:
    """Write a picture, with its folder, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi)
    return path
