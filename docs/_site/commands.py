"""The directive ``{commands}``: every command of ``lightning-jd`` with its options.

What is written is what the commands are: the table of :mod:`lightning_jd.cli`, signatures and
docstrings of the functions.
"""

import inspect
import re
from importlib import import_module
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

from lightning_jd.cli import COMMANDS, Commands


class CommandsDirective(SphinxDirective):
    """Lists all commands as Markdown, which the parser of the page then reads."""

    def run(self) -> list[nodes.Node]:
        lines = [line for text in pages(COMMANDS) for line in text.splitlines()]
        holder = nodes.section()
        holder.document = self.state.document
        self.state.nested_parse(
            StringList(lines, source="lightning_jd.cli"), 0, holder, match_titles=True
        )
        return holder.children


def pages(commands: Commands, prefix: str = "lightning-jd") -> list[str]:
    """One piece of Markdown per command."""
    found = []
    for name, command in commands.items():
        if isinstance(command, tuple):
            found += pages(command[1], f"{prefix} {name}")
        else:
            module, _, function = command.partition(":")
            found.append(describe(f"{prefix} {name}", getattr(import_module(module), function)))
    return found


def describe(command: str, function: Any) -> str:
    """Heading, help and options of one command."""
    text, _, rest = (inspect.getdoc(function) or "").partition("\nArgs:\n")
    arguments = rest.partition("\n\n")[0]
    help_of = dict(re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", arguments, re.MULTILINE))
    lines = [f"## {command}", "", text.strip(), ""]
    for name, parameter in inspect.signature(function).parameters.items():
        required = parameter.default is inspect.Parameter.empty
        shown = name.upper() if required else f"--{name}"
        default = "" if required else f" (default `{parameter.default}`)"
        said = " ".join(help_of[name].split())
        lines += [f"`{shown}`{default}", f": {said}", ""]
    return "\n".join(lines)


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("commands", CommandsDirective)
    return {"parallel_read_safe": True}
