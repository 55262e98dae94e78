"""The command line: ``lightning-jd``, or ``python -m lightning_jd.cli``."""

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from inspect import getdoc
from typing import Any

from lightning_jd import __version__
from lightning_jd.doctor import doctor
from lightning_jd.errors import JDError
from lightning_jd.report import report
from lightning_jd.surfaces._script import compare, front

_INTERRUPTED = 130  # the exit status of a shell after Ctrl-C


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The arguments after ``lightning-jd``; ``None`` uses those of the shell.

    Returns:
        The exit status: 0 for success, 1 for an error, 130 after Ctrl-C.
    """
    options = vars(parser().parse_args(argv))
    function = options.pop("function")
    try:
        function(**options)
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return _INTERRUPTED
    except JDError as error:
        print(f"lightning-jd: {error}", file=sys.stderr)
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    """The parser of ``lightning-jd``: help comes from the docstrings of the commands."""
    top = argparse.ArgumentParser(
        "lightning-jd", description="Jacobian descent for PyTorch Lightning."
    )
    top.add_argument("--version", action="version", version=f"lightning-jd {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    add = _command(commands, doctor)
    add("target", metavar="TARGET")
    add("--init", type=_json(dict, "an object"))
    add("--input-shape", "--input_shape", type=_json(list, "a list"), metavar="SHAPE")

    add = _command(commands, report)
    add("run_dir", metavar="RUN_DIR")
    add("other", metavar="OTHER", nargs="?")
    add("--output")
    add("--title")

    add = _command(commands, compare)
    add("--seeds", type=int, default=1)
    add("--workers", type=int, default=1)
    add("--folder")
    add("--output", default="compare.html")
    add("methods", metavar="METHODS")
    add("script", metavar="SCRIPT")
    add("arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER)

    add = _command(commands, front)
    add("--preferences", type=int, default=5)
    add("--objectives", default="")
    add("--higher-is-better", "--higher_is_better", action="store_true")
    add("--seeds", type=int, default=1)
    add("--workers", type=int)
    add("--folder")
    add("--output", default="front.html")
    add("methods", metavar="METHODS")
    add("script", metavar="SCRIPT")
    add("arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER)
    return top


def _command(commands: Any, function: Callable[..., None]) -> Callable[..., None]:
    """Add a command; the result adds an argument to it."""
    text, _, arguments = (getdoc(function) or "").partition("\nArgs:\n")
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", arguments, re.MULTILINE)
    help_of = {name: " ".join(words.split()) for name, words in found}
    child = commands.add_parser(
        function.__name__,
        help=text.partition("\n")[0],
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    child.set_defaults(function=function)

    def add(*names: str, **options: Any) -> None:
        name = names[0].lstrip("-").replace("-", "_")
        child.add_argument(*names, help=help_of[name], **options)

    return add


def _json(kind: type, name: str) -> Callable[[str], Any]:
    def read(word: str) -> Any:
        try:
            value = json.loads(word)
        except ValueError:
            value = None
        if not isinstance(value, kind):
            raise argparse.ArgumentTypeError(f"must be {name} in JSON, got {word!r}")
        return value

    return read


if __name__ == "__main__":
    sys.exit(main())
