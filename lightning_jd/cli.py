"""The command line: ``lightning-jd``, or ``python -m lightning_jd.cli``.

A command is a plain typed function: the signature gives its options, the docstring its help.
"""

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lightning_jd.errors import JDError

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

Command = Callable[..., None]
Commands = dict[str, "Command | tuple[str, Commands]"]

_INTERRUPTED = 130  # what a shell reports for a command that Ctrl-C has ended


def commands() -> Commands:
    """Name to function, or to a line of help and a mapping of the same kind."""
    from lightning_jd.bench.engines import engines
    from lightning_jd.bench.metrics import metrics
    from lightning_jd.bench.weights import weights
    from lightning_jd.doctor import doctor
    from lightning_jd.experiments.regularisation import regularisation
    from lightning_jd.report import report

    return {
        "doctor": doctor,
        "bench": (
            "Measure the package on this machine.",
            {"weights": weights, "engines": engines, "metrics": metrics},
        ),
        "regularisation": regularisation,
        "report": report,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The words after ``lightning-jd``; ``None`` reads them from the shell.

    Returns:
        The exit status: 0, 1 after an error that the message explains, 130 after Ctrl-C.
    """
    try:
        parser = _parser("Jacobian descent for PyTorch Lightning.", "lightning-jd")
    except ImportError:
        print(
            "The command line needs `jsonargparse` and `rich`, which are not installed. "
            "Run: pip install 'lightning-jd[cli]'",
            file=sys.stderr,
        )
        return 1
    try:
        table = commands()
        _add(parser, table)
        chosen: Any = parser.parse_args(None if argv is None else list(argv))
        command: Any = ("", table)
        while isinstance(command, tuple):
            name = chosen.subcommand
            command, chosen = command[1][name], chosen[name]
        command(**chosen.as_dict())
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return _INTERRUPTED
    except JDError as error:
        print(f"lightning-jd: {error}", file=sys.stderr)
        return 1
    return 0


def _parser(description: str, prog: str | None = None) -> "ArgumentParser":
    from argparse import RawDescriptionHelpFormatter

    from jsonargparse import ArgumentParser, DefaultHelpFormatter

    class Help(RawDescriptionHelpFormatter, DefaultHelpFormatter):
        """Keeps the paragraphs of the docstrings."""

    return ArgumentParser(prog=prog, description=description, formatter_class=Help)


def _add(parser: "ArgumentParser", table: Commands) -> None:
    subcommands = parser.add_subcommands(required=True)
    for name, command in table.items():
        text = command[0] if isinstance(command, tuple) else (inspect.getdoc(command) or "")
        text = text.partition("\nArgs:")[0].strip()
        child = _parser(text)
        subcommands.add_subcommand(name, child, help=text.partition("\n")[0])
        # Only now: jsonargparse wants the levels to be added from the top.
        if isinstance(command, tuple):
            _add(child, command[1])
        else:
            child.add_function_arguments(command, as_group=False, as_positional=True)


if __name__ == "__main__":
    sys.exit(main())
