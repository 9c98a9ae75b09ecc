"""The commands of `python -m scoring_service`. What only one of them needs, it imports itself."""

from __future__ import annotations

import gc
import json
import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from scoring_service.bundle import ModelBundle
from scoring_service.client.channel import ClientSecurity
from scoring_service.client.sync import Score, ScoringClient
from scoring_service.errors import ConfigError, ScoringError, ServiceUnavailable
from scoring_service.server.supervisor import supervise
from scoring_service.service.config import ServerConfig

if TYPE_CHECKING:
    from scoring_service.bench.config import BenchConfig, LoadtestConfig
    from scoring_service.service.reload import BundleSource


def serve(
    config: ServerConfig, bundle: str | None, registry_model: str | None, mlruns_dir: str
) -> None:
    """Serve a ranker over gRPC until SIGTERM or SIGINT, then drain and exit 0.

    A new version in the bundle's folder, or behind the registry's alias, takes over by itself once
    it is verified; a damaged or wrong one is refused and the old one serves on.

    Example:
      python -m scoring_service serve --bundle mlruns/demo/bundle --address 127.0.0.1:50051
    """
    if config.processes > 1:
        given = {"bundle": bundle, "registry_model": registry_model, "mlruns_dir": mlruns_dir}
        supervise(config, [f"--{name}={value}" for name, value in given.items() if value])
        return
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from scoring_service.ranker.model import RankerModel
    from scoring_service.server.server import ScoringServer
    from scoring_service.server.time_slices import ask_for_short_slices

    ask_for_short_slices()

    source = _source(bundle, registry_model, mlruns_dir)
    model = RankerModel.load(ModelBundle.load(source.locate()), config.precision)
    server = ScoringServer(model, config, source)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    server.start()
    # What is there by now stays: the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    print(f"serving {model.manifest.name} revision {model.revision} on {server.target}", flush=True)
    stopped.wait()
    server.stop()


def score(
    prompts: Sequence[str],
    target: str,
    timeout_s: float,
    target_model: str | None,
    security: ClientSecurity,
    as_json: bool,
) -> None:
    """Score prompts with a running service; one line per prompt: score, TAB, prompt.

    A score has no unit; higher means that a longer response is expected. With --target-model the
    expected tokens come between the two. A prompt that has no score gets "-" instead; the exit code
    is 2 then.

    Example:
      python -m scoring_service score --target 127.0.0.1:50051 "Say hello." "Write a long essay."
    """
    with ScoringClient(
        target, timeout_s=timeout_s, target_model=target_model, security=security
    ) as client:
        results = client.score_batch(prompts)
    failed = {n: s for n, s in enumerate(results, 1) if not isinstance(s, Score)}
    if len(failed) == len(results):
        raise failed[1]
    if as_json:
        rows = [{"prompt": p, **_json(s)} for p, s in zip(prompts, results, strict=True)]
        print(json.dumps({"scores": rows}, allow_nan=False))
    else:
        for prompt, result in zip(prompts, results, strict=True):
            print(*_columns(result, bool(target_model)), prompt, sep="\t")
    if failed:
        reasons = "; ".join(f"prompt {n} of {len(results)}: {e}" for n, e in failed.items())
        raise ScoringError(reasons)


def bench(config: BenchConfig, as_json: bool) -> None:
    """Measure the service beside the bare model, a naive service and MLServer.

    Starts everything it needs, lets the peers take turns and compares CPU times; about 4 minutes.

    Example:
      python -m scoring_service bench --bundle mlruns/demo/bundle --json
    """
    from scoring_service.bench.run import print_table, run_bench

    result = run_bench(config)
    if as_json:
        print(json.dumps(result, allow_nan=False))
    else:
        print_table(result)


def loadtest(config: LoadtestConfig, security: ClientSecurity, as_json: bool) -> None:
    """Load a running service at a fixed rate and print what became of the requests.

    With --seconds 600 --pid PID it is a soak that also watches the server's memory. Ctrl-C ends it
    early; what was sent until then is told. The exit code is 2 where nothing was answered, or that
    process ended meanwhile.

    Example:
      python -m scoring_service loadtest --target 127.0.0.1:50051 --rate 200 --seconds 10
    """
    from scoring_service.bench.loadtest import print_loadtest, run_loadtest

    result = run_loadtest(config, security)
    if as_json:
        print(json.dumps(result, allow_nan=False))
    else:
        print_loadtest(result)
    if result["interrupted"]:
        raise KeyboardInterrupt
    if config.pid is not None and result["rss_growth_fraction"] is None:
        raise ServiceUnavailable(f"process {config.pid} ended during the load test; see its log")
    if not result["answered"]:
        raise ServiceUnavailable(
            f"{config.target} answered none of {result['sent']} requests; look there, or give "
            "them a lower --rate or a longer --timeout-s"
        )


def _json(result: Score | ScoringError) -> dict[str, Any]:
    return asdict(result) if isinstance(result, Score) else {"error": str(result)}


def _columns(result: Score | ScoringError, with_tokens: bool) -> list[str]:
    score, tokens = "-", "-"
    if isinstance(result, Score):
        score = f"{result.value:+.4f}"
        tokens = "-" if result.expected_tokens is None else f"{result.expected_tokens:.0f}"
    return [score, tokens] if with_tokens else [score]


def _source(bundle: str | None, registry_model: str | None, mlruns_dir: str) -> BundleSource:
    from scoring_service.service.registry import RegistrySource
    from scoring_service.service.reload import FolderSource

    if bundle is not None and registry_model is None:
        return FolderSource(bundle)
    if registry_model is not None and bundle is None:
        return RegistrySource(registry_model, mlruns_dir)
    raise ConfigError("what to serve is not clear; give one of --bundle and --registry_model")
