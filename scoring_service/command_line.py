"""What all our command lines share: help that keeps its lines, hyphens in options."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import cleandoc

from jsonargparse import ArgumentParser, DefaultHelpFormatter, set_parsing_settings


class TeachingFormatter(DefaultHelpFormatter):
    """Leaves the line breaks of a description, and with them its examples, as they were written."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "".join(indent + line for line in text.splitlines(keepends=True))


def make_parser(prog: str, description: str | None, usage: str | None = None) -> ArgumentParser:
    """A parser whose options, where they are fields of dataclasses, document themselves."""
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    return ArgumentParser(
        prog=prog,
        usage=usage and f"{prog} {usage}",
        description=cleandoc(description or ""),
        formatter_class=TeachingFormatter,
    )


def underscored(arguments: Sequence[str]) -> list[str]:
    """`--max-num-seqs=4` is as good as `--max_num_seqs=4`: fields have no hyphens."""
    return [_underscored(argument) for argument in arguments]


def _underscored(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument[2:].partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"
