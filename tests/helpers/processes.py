"""Any number of gloo processes that meet through a file, for what two of them cannot show."""

from pathlib import Path

from tests.helpers.two_processes import Team, Work


def run_in_processes(work: Work, folder: Path, processes: int) -> None:
    """Call ``work(rank, folder)`` in some processes; an error in one of them is raised here."""
    team = Team(processes)
    try:
        team.run(work, folder)
    finally:
        team.stop()
