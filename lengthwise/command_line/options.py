"""Options of a command, from its frozen dataclasses.

A command is a function whose parameters are dataclasses. Each field is an option, its docstring
the help text, and the docstring of the function the description. jsonargparse checks and converts
the values. This module adds hyphens (`--batch-size`), flags without a value (`--no-resume`), lists
as words (`--lengths 16 32` or `16,32`), positional fields, a short `--help` and one-line errors.
"""

from __future__ import annotations

import json
import re
from argparse import ArgumentError, ArgumentParser as HelpPage, RawDescriptionHelpFormatter
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import partial
from inspect import cleandoc
from pathlib import Path
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from lengthwise.errors import ConfigError

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

Command = Callable[..., int | None]
"""A function of dataclasses that returns the exit code (None: 0)."""
POSITIONAL: Final[Mapping[str, Any]] = {"positional": True}
"""Metadata of a field that needs no option name; a list takes all remaining words."""
NESTED: Final[Mapping[str, Any]] = {"nested": True}
"""Metadata of a mapping of another library's options, which `extend` of `parse` adds."""
HELP: Final = ("-h", "--help", "--help-all")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])
_WIDTHS: Final[Mapping[str, Any]] = {"max_help_position": 32, "width": 100}
_MAX_SHORT: Final = 10
"""Options in --help."""


def common_options(*names: str) -> Callable[[Decorated], Decorated]:
    """Decorator: the options in a command's `--help`, dotted where nested.

    The default is the required options, then the first others, ten in all.
    """

    def mark(command: Decorated) -> Decorated:
        command.__dict__["common_options"] = names
        return command

    return mark


def parse(
    program: str,
    command: Command,
    arguments: Sequence[str],
    defaults: Mapping[str, Any] | None = None,
    description: str | None = None,
    *,
    reword: Callable[[str], str] = str,
    extend: Callable[[ArgumentParser], None] | None = None,
) -> dict[str, Any]:
    """Return the command's dataclasses by parameter name.

    Args:
        program: as typed by the user, e.g. "python -m training fit".
        defaults: field -> default in place of the dataclass's; nested fields in mappings.
        description: text of --help; None: the command's docstring.
        reword: applied to the text of --help.
        extend: adds the options of nested fields to the parser; None: they have their defaults.

    Raises:
        ConfigError: an argument is missing, unknown or wrong.
        SystemExit: --help or --help-all was given, and the help is printed.
    """
    parser, given = make_parser(program, command, description), dict(defaults or {})
    nested = _marked(command, "nested")
    parser.set_defaults({name: value for name, value in given.items() if name not in nested})
    types = {name: option._typehint for name, option in _options(parser).items()}
    words = _as_options(arguments, types, _marked(command, "positional"))
    words.sort(key=lambda word: not word.startswith("--config="))  # An option beside a file wins.
    wanted = [word for word in words if word in HELP]
    if extend is not None:
        # The help leaves out the options of a library that is not installed.
        with suppress(ModuleNotFoundError) if wanted else nullcontext():
            extend(parser)
        types = {name: option._typehint for name, option in _options(parser).items()}
    standard = parser.get_defaults()
    if wanted:
        page = _short_help(parser, command) if wanted[0] == "--help" else parser.format_help()
        print(reword(re.sub(r"--[\w.]+", lambda match: hyphens(match[0]), page)), end="")
        raise SystemExit(0)
    try:
        parsed = parser.parse_args(words)
        for name in (name for name in nested if name in parsed):
            found, usual = (_plain(parser, each)[name] for each in (parsed, standard))
            pairs = {key: found.get(key) for key in {**usual, **found}}.items()
            changed = {key: value for key, value in pairs if value != usual.get(key)}
            given[name] = {**given.get(name, {}), **changed}
            parsed.pop(name)
        values = vars(parser.instantiate(parsed)) | {n: given[n] for n in nested if n in given}
    except ArgumentError as error:
        raise ConfigError(_in_one_line(str(error), types)) from error
    return {
        name: kind(
            **{field.name: values[field.name] for field in fields(kind) if field.name in values}
        )
        for name, kind in _dataclasses(command).items()
    }


def _plain(parser: ArgumentParser, values: Any) -> Any:
    return json.loads(parser.dump(values, format="json", skip_validation=True))


def make_parser(program: str, command: Command, description: str | None = None) -> ArgumentParser:
    """Return the parser of a command; its own help has every option."""
    from jsonargparse import ArgumentParser, DefaultHelpFormatter, set_parsing_settings

    class Formatter(RawDescriptionHelpFormatter, DefaultHelpFormatter):
        def __init__(self, prog: str) -> None:
            super().__init__(prog, **_WIDTHS)  # type: ignore[no-untyped-call]

    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    text = cleandoc(description or command.__doc__ or "")
    parser = ArgumentParser(
        prog=program, description=text, formatter_class=Formatter, exit_on_error=False
    )
    for kind in _dataclasses(command).values():
        parser.add_class_arguments(kind, as_group=False, skip=set(_marked(command, "nested")))
    parser.add_argument("--help-all", action="help", help="Show this help message and exit.")
    for option in _options(parser).values():
        option._typehint = _without_ranges(option._typehint)
    positional = _marked(command, "positional")
    words = [name.upper() for name in positional]
    for name, option in _options(parser).items():
        if option.required and name not in positional:
            words.append(f"--{name} {name.upper()}")
    parser.usage = " ".join([program, *words, "[options]"])
    return parser


def _short_help(parser: ArgumentParser, command: Command) -> str:
    """Return the purpose, the paragraphs with a heading such as examples, and common options."""
    first, *others = re.split(r"\n{2,}", parser.description or "")
    headed = [part for part in others if part.splitlines()[0].endswith(":")]
    options = _options(parser)
    likely = sorted(options, key=lambda name: not options[name].required)[:_MAX_SHORT]
    common = getattr(command, "common_options", likely)
    rest = f"{parser.prog} --help-all shows all {len(options)} options"
    page = HelpPage(
        usage=parser.usage,
        description="\n\n".join([first, *headed]),
        epilog=rest if len(options) > len(common) else None,
        formatter_class=partial(RawDescriptionHelpFormatter, **_WIDTHS),
        add_help=False,
    )
    group, positional = page.add_argument_group("options"), _marked(command, "positional")
    group.add_argument("-h", "--help", action="help", help="Show this help message and exit.")
    for name, option in options.items():
        if name in common:
            _add_line(group, option, name in positional)
    return page.format_help()


def _add_line(group: Any, action: Any, is_positional: bool) -> None:
    text = re.split(r"(?<=[a-z)]\.)\s+(?=[A-Z0-9])", action.help or "")[0]
    if not action.required and action.default not in (None, False, [], (), {}):
        text += f" (default: {action.default})"
    hint, text = action._typehint, text.strip().replace("%", "%%")
    if is_positional:
        group.add_argument(action.dest, metavar=action.dest.upper(), help=text)
    elif hint is bool and not action.default:
        group.add_argument(action.option_strings[0], action="store_true", help=text)
    else:
        numbers = {int: "N", int | None: "N", float: "X", float | None: "X"}
        last_word = re.split(r"[._]", action.dest)[-1].upper()
        name = "ITEM ..." if _item_type(hint) else action.metavar or numbers.get(hint, last_word)
        group.add_argument(action.option_strings[0], metavar=name, help=text)


def hyphens(text: str) -> str:
    """Return a text with hyphens in place of underscores inside words."""
    return re.sub(r"(?<=[a-z0-9])_(?=[a-z0-9])", "-", text)


def _options(parser: ArgumentParser) -> dict[str, Any]:
    """Return the options of fields by name, nested fields included; each has a `_typehint`."""
    return {action.dest: action for action in parser._actions if hasattr(action, "_typehint")}


def _without_ranges(hint: Any) -> Any:
    return get_type_hints(type("Holder", (), {"__annotations__": {"value": hint}}))["value"]


def _dataclasses(command: Command) -> dict[str, type[Any]]:
    return {
        name: hint
        for name, hint in get_type_hints(command).items()
        if isinstance(hint, type) and is_dataclass(hint) and name != "return"
    }


def _marked(command: Command, mark: str) -> list[str]:
    """Return the fields of the command's dataclasses whose metadata have that mark."""
    settings = [field for kind in _dataclasses(command).values() for field in fields(kind)]
    return [field.name for field in settings if field.metadata.get(mark)]


def _as_options(
    arguments: Sequence[str], types: Mapping[str, Any], positional: Sequence[str]
) -> list[str]:
    """Return the arguments as `--field=value` words, which are unambiguous to the parser."""
    words, options, loose = deque(arguments), list[str](), list[str]()
    while words:
        if (word := words.popleft()) == "--":
            loose.extend(words)
            break
        if word in HELP:
            options.append("--help" if word == "-h" else word)
        elif word.startswith("--"):
            options.append(_option(word, words, types))
        else:
            loose.append(word)
    for name in positional:
        if loose and _item_type(types[name]):
            options.append(f"--{name}={_list_of(loose, types[name])}")
            loose = []
        elif loose:
            options.append(f"--{name}={loose.pop(0)}")
    return options + loose


def _option(word: str, words: deque[str], types: Mapping[str, Any]) -> str:
    """Return an option with its value, which is taken off `words` where it follows."""
    name, equals, value = word[2:].partition("=")
    name = name.replace("-", "_")
    hint, positive = types.get(name), name.removeprefix("no_")
    given = [value] if equals else []
    if hint is None and types.get(positive) is bool and not equals:
        return f"--{positive}=false"
    if hint is bool and not equals:
        # Any word may follow --json, "true" too.
        is_value = bool(words) and words[0].lower() in ("true", "false") and name != "json"
        given = [words.popleft() if is_value else "true"]
    elif not equals:
        while words and not words[0].startswith("--"):
            given.append(words.popleft())
            if not _item_type(hint) or _whole_list(given[0], hint):
                break
    if not given:
        return f"--{name}"
    if not _item_type(hint) or (given == ["null"] and type(None) in get_args(hint)):
        return f"--{name}={given[0]}"
    if len(given) == 1 and not given[0].startswith("["):
        given = re.split(r"\s*,\s*", given[0])
    return f"--{name}={_whole_list(given[0], hint) or _list_of(given, hint)}"


def _item_type(hint: Any) -> Any:
    """Return the type of the items of a list; None for another type."""
    lists = [part for part in (hint, *get_args(hint)) if get_origin(part) in (list, tuple)]
    return get_args(lists[0])[0] if lists else None


def _whole_list(word: str, hint: Any) -> str | None:
    """Return a list in one word: JSON, or names such as `[a, b]`. None: the word is an item."""
    if not word.startswith("["):
        return None
    with suppress(ValueError):
        items = json.loads(word)
        if all(isinstance(item, str) for item in items):
            return _list_of(items, hint)
    if _item_type(hint) is not str:
        return word
    names = re.fullmatch(r"\[\s*([\w.:/-]+(?:\s*,\s*[\w.:/-]+)*)\s*\]", word)
    return names and _list_of(re.split(r"\s*,\s*", names[1]), hint)


def _list_of(items: Sequence[str], hint: Any) -> str:
    if _item_type(hint) in (int, float):
        return f"[{', '.join(items)}]"
    # YAML lacks JSON's pairs of surrogates, and breaks a line at more characters than JSON.
    quoted = (re.sub(r"[^ !#-[\]-~]", lambda m: f"\\U{ord(m[0]):08x}", item) for item in items)
    return "[" + ", ".join(f'"{item}"' for item in quoted) + "]"


def _in_one_line(message: str, types: Mapping[str, Any]) -> str:
    if (missing := re.search(r"arguments are required: ([\w.]+)", message)) is not None:
        return f"{hyphens(missing[1])} is missing; see --help for the settings"
    if (unknown := re.search(r"unrecognized arguments: ([^\s=]+)", message)) is not None:
        return _unknown(hyphens(unknown[1]), list(map(hyphens, types)))
    found = re.search(r'(?:Parser key "|argument --)([\w.]+)', message)
    value = re.search(r"(?:Got|Given) value: (.*)|expected one argument", message)
    if found is None or value is None:
        return f"{hyphens(' '.join(message.split()))}; see --help-all for the settings"
    name, hint = hyphens(found[1]), types.get(found[1])
    given = "has no value" if value[1] is None else f"is {value[1]!r}"
    if get_origin(hint) is Literal:
        return f"{name} {given}; use one of {_in_words(hint)}"
    return f"{name} {given}; it takes {_in_words(hint)} (see --help-all)"


def _unknown(word: str, names: Sequence[str]) -> str:
    name = word.removeprefix("--").removeprefix("no-")
    if not word.startswith("--"):
        return f"{word!r} belongs to no option; see --help-all for the settings"
    near = [each for each in names if each.endswith(f".{name}")] or get_close_matches(name, names)
    advice = f"did you mean {' or '.join(f'--{each}' for each in near)}? " if near else ""
    return f"no option {word}; {advice}--help-all shows all"


_WORDS: Final[Mapping[Any, str]] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    Path: "a path",
    Any: "any value",
    type(None): "null",
}


def _in_words(hint: Any) -> str:
    """Return the values of a type in the words of a user."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(map(_in_words, parts))
    if origin is Literal:
        return ", ".join(map(str, parts))
    if item := _item_type(hint):
        return f"one or more words ({_in_words(item)} each)"
    if origin is not None and issubclass(origin, Mapping):
        return f'JSON, {{"NAME": {_in_words(parts[1])}}}'
    return _WORDS.get(hint) or str(getattr(hint, "__name__", "another value"))
