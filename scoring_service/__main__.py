"""`python -m scoring_service`: the command line. The commands themselves are in `commands.py`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from inspect import getdoc
from typing import Any

from jsonargparse import ArgumentParser

from scoring_service import commands
from scoring_service.bench.config import BenchConfig, LoadtestConfig
from scoring_service.client.channel import ClientSecurity
from scoring_service.command_line import make_parser, underscored
from scoring_service.errors import ConfigError, LengthwiseError
from scoring_service.logs import FORMATS, configure_logs
from scoring_service.service.config import ServerConfig

_DESCRIPTION = """Predict the length order of LLM responses: serve a trained ranker over gRPC.

Examples:
  python -m scoring_service serve --bundle mlruns/demo/bundle --address 127.0.0.1:50051
  python -m scoring_service score --target 127.0.0.1:50051 "Say hello." "Write a long essay."
  python -m scoring_service loadtest --target 127.0.0.1:50051 --rate 200 --seconds 10
  python -m scoring_service bench --bundle mlruns/demo/bundle
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0, 2 after an error of ours, 130 after Ctrl-C."""
    try:
        command, keywords = _parse(sys.argv[1:] if arguments is None else arguments)
        command(**keywords)
    except LengthwiseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def _parse(arguments: Sequence[str]) -> tuple[Callable[..., None], dict[str, Any]]:
    """The command and its arguments, dataclasses made whole."""
    parsed = _parser().parse_args(underscored(arguments))
    values = parsed[parsed.subcommand].as_dict()
    values.pop("config", None)
    log_format = values.pop("log_format", "text")
    if log_format not in FORMATS:
        raise ConfigError(f"log_format is {log_format!r}; use one of {', '.join(FORMATS)}")
    configure_logs(log_format)
    command = getattr(commands, parsed.subcommand)
    for name, kind in _DATACLASSES[parsed.subcommand].items():
        values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
    return command, values


_DATACLASSES: dict[str, dict[str, type[Any]]] = {
    "serve": {"config": ServerConfig},
    "score": {"security": ClientSecurity},
    "loadtest": {"config": LoadtestConfig, "security": ClientSecurity},
    "bench": {"config": BenchConfig},
}
"""Command -> its parameters that are dataclasses, whose fields are options of their own."""


def _parser() -> ArgumentParser:
    parser = make_parser("python -m scoring_service", _DESCRIPTION)
    subcommands = parser.add_subcommands()
    for name, add in _OPTIONS.items():
        text = getdoc(getattr(commands, name)) or ""
        subcommand = make_parser(f"python -m scoring_service {name}", text)
        add(subcommand)
        subcommands.add_subcommand(name, subcommand, help=text.splitlines()[0])
    return parser


def _add_serve(parser: ArgumentParser) -> None:
    parser.add_argument("--bundle", type=str | None, help="Folder of the model bundle.")
    parser.add_argument(
        "--registry_model", type=str | None, help="Or the model behind an MLflow alias, NAME@ALIAS."
    )
    parser.add_argument(
        "--mlruns_dir",
        type=str,
        default="mlruns",
        help="Folder of that MLflow store, or http(s) address of an MLflow server.",
    )
    parser.add_argument("--log_format", type=str, default="text", help="text or json.")
    parser.add_class_arguments(ServerConfig, as_group=False)


def _add_score(parser: ArgumentParser) -> None:
    parser.add_argument("prompts", type=str, nargs="+", help="Prompts to score.")
    parser.add_argument("--target", type=str, default="127.0.0.1:50051", help="HOST:PORT.")
    parser.add_argument("--timeout_s", type=float, default=5.0, help="Deadline, seconds.")
    parser.add_argument(
        "--target_model", type=str | None, help="Also estimate the tokens this model will answer."
    )
    parser.add_class_arguments(ClientSecurity, as_group=False)
    _add_json(parser)


def _add_bench(parser: ArgumentParser) -> None:
    parser.add_class_arguments(BenchConfig, as_group=False)
    _add_json(parser)


def _add_loadtest(parser: ArgumentParser) -> None:
    parser.add_class_arguments(LoadtestConfig, as_group=False)
    parser.add_class_arguments(ClientSecurity, as_group=False)
    _add_json(parser)


def _add_json(parser: ArgumentParser) -> None:
    parser.add_argument("--json", dest="as_json", action="store_true", help="One JSON object.")


_OPTIONS = {
    "serve": _add_serve,
    "score": _add_score,
    "loadtest": _add_loadtest,
    "bench": _add_bench,
}


if __name__ == "__main__":
    sys.exit(main())
