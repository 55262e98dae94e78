"""The command line of the laboratory: ``python -m examples.lab``, in the root of the repository.

A command is a typed function: its signature defines the options, its docstring the help.
"""

import ast
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_jd.errors import JDError

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

Commands = Mapping[str, "str | tuple[str, Commands]"]

#: Name to "module:function", or to a line of help and a mapping of the same kind.
COMMANDS: Commands = {
    "iwrm": "examples.lab.studies.iwrm:iwrm",
    "mtl": "examples.lab.studies.mtl:mtl",
    "speed": "examples.lab.studies.speed:speed",
    "trajectories": "examples.lab.studies.trajectories:trajectories",
    "regularisation": "examples.lab.studies.regularisation:regularisation",
    "imbalance": "examples.lab.studies.imbalance:imbalance",
    "flipped": "examples.lab.studies.flipped:flipped",
    "frozen": "examples.lab.studies.frozen:frozen",
    "fronts": "examples.lab.studies.fronts:fronts",
    "large_batches": "examples.lab.studies.large_batches:large_batches",
    "momentum": "examples.lab.studies.momentum:momentum",
    "bench": (
        "Measure the package on this machine.",
        {
            "all": "examples.lab.bench.all:bench_all",
            "weights": "examples.lab.bench.weights:weights",
            "engines": "examples.lab.bench.engines:engines",
            "launches": "examples.lab.bench.launches:launches",
            "scale": "examples.lab.bench.scale:scale",
            "fit": "examples.lab.bench.fit:fit",
            "metrics": "examples.lab.bench.metrics:metrics",
            "gallery": "examples.lab.bench.gallery:gallery",
            "exactness": "examples.lab.bench.exactness:exactness",
            "methods": "examples.lab.bench.methods:methods",
            "optimizers": "examples.lab.bench.optimizers:optimizers",
            "ddp": "examples.lab.bench.ddp:ddp",
        },
    ),
}

#: Modules of the commands that go on where they were interrupted.
_CONTINUING = ("examples.lab.studies.", "examples.lab.bench.all:")
_INTERRUPTED = 130  # the exit status of a shell after Ctrl-C


def main(argv: Sequence[str] | None = None, commands: Commands = COMMANDS) -> int:
    """Run one command.

    Args:
        argv: The arguments after ``python -m examples.lab``; ``None`` uses those of the shell.
        commands: The available commands.

    Returns:
        The exit status: 0 for success, 1 for an error, 130 after Ctrl-C.
    """
    words = [_underscored(word) for word in (sys.argv[1:] if argv is None else argv)]
    try:
        parser = _parser("Benchmarks and studies of lightning_jd.", "python -m examples.lab")
    except ImportError:
        print(
            "The laboratory needs `jsonargparse` and `rich`, which are not installed. "
            "Run: pip install 'lightning-jd[lab]'",
            file=sys.stderr,
        )
        return 1
    try:
        function = _add(parser, commands, words)
        options: Any = parser.parse_args(words)
        while "subcommand" in options:
            options = options[options.subcommand]
        function(**options.as_dict())
    except KeyboardInterrupt:
        print(f"\nInterrupted.{_continues(commands, words)}", file=sys.stderr)
        return _INTERRUPTED
    except JDError as error:
        print(f"examples.lab: {error}", file=sys.stderr)
        return 1
    return 0


def _continues(commands: Commands, words: list[str]) -> str:
    """The note on an interrupted command; some keep what is finished."""
    command = commands.get(words[0]) if words else None
    if isinstance(command, tuple):
        return _continues(command[1], words[1:])
    if command is not None and command.startswith(_CONTINUING):
        return " Finished runs are kept; run the same command to continue."
    return ""


def _underscored(word: str) -> str:
    """Turn ``--batch-size`` into ``--batch_size``, the name of a function argument."""
    name, equals, value = word.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value if name.startswith("--") else word


def _parser(description: str, prog: str | None = None) -> "ArgumentParser":
    from argparse import RawDescriptionHelpFormatter

    from jsonargparse import ArgumentParser, DefaultHelpFormatter

    class Help(RawDescriptionHelpFormatter, DefaultHelpFormatter):
        """Keeps the paragraphs of the docstrings."""

    return ArgumentParser(prog=prog, description=description, formatter_class=Help)


def _add(parser: "ArgumentParser", commands: Commands, words: list[str]) -> Callable[..., None]:
    """Add the commands to the parser, and the options of the selected one.

    Only the selected command is imported, because some libraries take seconds to import.
    """
    chosen: Callable[..., None] = _nothing
    subcommands = parser.add_subcommands(required=True)
    for name, command in commands.items():
        text = command[0] if isinstance(command, tuple) else _docstring(command)
        text = text.partition("\nArgs:")[0].strip()
        child = _parser(text)
        subcommands.add_subcommand(name, child, help=text.partition("\n")[0])
        if words[:1] != [name]:
            continue
        if isinstance(command, tuple):
            chosen = _add(child, command[1], words[1:])
        else:
            module, _, function = command.partition(":")
            chosen = getattr(import_module(module), function)
            child.add_function_arguments(chosen, as_group=False, as_positional=True)
    return chosen


def _nothing() -> None:
    """Placeholder without a command; the parser has already raised an error."""


def _docstring(command: str) -> str:
    """Read the docstring of "module:function" without importing the module."""
    module, _, name = command.partition(":")
    spec = find_spec(module)
    source = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return ast.get_docstring(node) or ""
    raise ImportError(f"The command {command} does not exist.")


if __name__ == "__main__":
    sys.exit(main())
