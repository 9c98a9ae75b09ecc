"""`python -m scoring_service`: serve a model bundle, or ask a service for scores."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from typing import Any

from jsonargparse import ArgumentParser, Namespace, set_parsing_settings

from scoring_service.bundle import ModelBundle
from scoring_service.client import Score, ScoringClient
from scoring_service.config import ServerConfig
from scoring_service.errors import ConfigError, LengthwiseError

_DESCRIPTION = """Predict the length order of LLM responses: serve a trained ranker over gRPC.

Examples:
  python -m scoring_service serve --bundle mlruns/demo/bundle --address 127.0.0.1:50051
  python -m scoring_service score --target 127.0.0.1:50051 "Say hello." "Write a long essay."
"""


def serve(
    config: ServerConfig, bundle: str | None, registry_model: str | None, mlruns_dir: str
) -> None:
    """Serve a ranker over gRPC until SIGTERM or SIGINT, then drain and exit 0.

    A new version in the bundle's folder, or behind the registry's alias, takes over by itself once
    it is verified; a damaged or wrong one is refused and the old one serves on.
    """
    # Imported here so that `score` needs no model runtime.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from scoring_service.model import RankerModel
    from scoring_service.registry import RegistrySource
    from scoring_service.reload import BundleSource, FolderSource
    from scoring_service.server import ScoringServer

    if (bundle is None) == (registry_model is None):
        raise ConfigError("nothing says what to serve; give --bundle or --registry-model")
    source: BundleSource = (
        RegistrySource(registry_model, mlruns_dir)
        if registry_model is not None
        else FolderSource(bundle or "")
    )
    model = RankerModel.load(ModelBundle.load(source.locate()), config.precision)
    server = ScoringServer(model, config, source)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    server.start()
    print(f"serving {model.manifest.name} revision {model.revision} on {server.target}", flush=True)
    stopped.wait()
    server.stop()


def score(
    prompts: Sequence[str], target: str, timeout_s: float, target_model: str | None, as_json: bool
) -> None:
    """Score prompts with a running service; one line per prompt: score, TAB, prompt."""
    with ScoringClient(target, timeout_s=timeout_s, target_model=target_model) as client:
        results = client.score_batch(prompts)
    for result in results:
        if not isinstance(result, Score):
            raise result
    scores = [result for result in results if isinstance(result, Score)]
    if as_json:
        rows = [{"prompt": p, **asdict(s)} for p, s in zip(prompts, scores, strict=True)]
        print(json.dumps({"scores": rows}, allow_nan=False))
        return
    for prompt, result in zip(prompts, scores, strict=True):
        print(f"{result.value:+.4f}\t{prompt}")


def bench(as_json: bool, **settings: Any) -> None:
    """Measure the service beside the bare model, a naive service and MLServer.

    Starts everything it needs, lets the peers take turns and compares CPU times; about 3 minutes.
    """
    from scoring_service.bench.config import BenchConfig
    from scoring_service.bench.run import print_table, run_bench

    result = run_bench(BenchConfig(**settings))
    if as_json:
        print(json.dumps(result, allow_nan=False))
    else:
        print_table(result)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run the command. Returns the exit code: 2 for bad input."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    try:
        command, keywords = _parse(arguments)
        command(**keywords)
    except LengthwiseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parse(arguments: Sequence[str] | None) -> tuple[Callable[..., None], dict[str, Any]]:
    parser = ArgumentParser(
        prog="python -m scoring_service", description=_DESCRIPTION, formatter_class=_formatter()
    )
    commands = parser.add_subcommands()
    commands.add_subcommand("serve", _serve_parser())
    commands.add_subcommand("score", _score_parser())
    commands.add_subcommand("bench", _bench_parser())
    parsed = parser.parse_args([_underscored(a) for a in arguments or sys.argv[1:]])
    chosen: Namespace = parsed[parsed.subcommand]
    values = {key: value for key, value in chosen.as_dict().items() if key != "config"}
    if parsed.subcommand == "score":
        return score, values
    if parsed.subcommand == "bench":
        return bench, values
    settings = {field.name: values.pop(field.name) for field in fields(ServerConfig)}
    return serve, {**values, "config": ServerConfig(**settings)}


def _underscored(argument: str) -> str:
    """`--drain-grace-s=1` is as good as `--drain_grace_s=1`."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument[2:].partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"


def _formatter() -> type:
    from jsonargparse import DefaultHelpFormatter

    class RawHelp(DefaultHelpFormatter):
        """Keeps the line breaks of the examples."""

        def _fill_text(self, text: str, width: int, indent: str) -> str:
            return text

    return RawHelp


def _serve_parser() -> ArgumentParser:
    parser = ArgumentParser(description=serve.__doc__)
    parser.add_argument("--bundle", type=str | None, help="Folder of the model bundle.")
    parser.add_argument(
        "--registry_model",
        type=str | None,
        help="Or the model behind an MLflow alias, NAME@ALIAS.",
    )
    parser.add_argument(
        "--mlruns_dir", type=str, default="mlruns", help="Folder of that MLflow store."
    )
    parser.add_class_arguments(ServerConfig, as_group=False)
    return parser


def _score_parser() -> ArgumentParser:
    parser = ArgumentParser(description=score.__doc__)
    parser.add_argument("prompts", type=str, nargs="+", help="Prompts to score.")
    parser.add_argument("--target", type=str, default="127.0.0.1:50051", help="HOST:PORT.")
    parser.add_argument("--timeout_s", type=float, default=5.0, help="Deadline, seconds.")
    parser.add_argument("--target_model", type=str | None, default=None, help="Also in its tokens.")
    parser.add_argument(
        "--json", dest="as_json", action="store_true", help="Print one JSON object."
    )
    return parser


def _bench_parser() -> ArgumentParser:
    from scoring_service.bench.config import BenchConfig

    parser = ArgumentParser(description=bench.__doc__)
    parser.add_class_arguments(BenchConfig, as_group=False)
    parser.add_argument("--json", dest="as_json", action="store_true", help="One JSON object.")
    return parser


if __name__ == "__main__":
    sys.exit(main())
