"""Load on a running service at a fixed rate, which slow answers do not lower."""

import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import grpc
import numpy as np

from lengthwise.errors import ServiceOverloaded, ServiceUnavailable
from lengthwise.settings import Positive, settings
from lengthwise.strict_json import to_json
from scoring_service.client.channel import ClientSecurity
from scoring_service.client.codec import write_prompt
from scoring_service.proto.status import CODE_OF, from_rpc_error
from scoring_service.server.rpc import SERVICE
from scoring_service.server.worker import Wait, end_request

_WORDS: Final = ("write", "explain", "short", "long", "story", "about", "code", "email", "poem")


@settings
class LoadtestConfig:
    """Requests of a load test, with different random prompts of about 30 words."""

    target: str = "127.0.0.1:50051"
    """HOST:PORT of the service."""
    rate: Positive = 100.0
    """Requests per second, Poisson arrivals."""
    seconds: Positive = 10.0
    """Duration of the load, seconds."""
    timeout_s: Positive = 0.1
    """Deadline of each request, seconds."""
    seed: int = 0
    """Of prompts and arrival times."""
    json: bool = False
    """Print one JSON object."""


def loadtest(config: LoadtestConfig, security: ClientSecurity) -> None:
    """Load a running service at a fixed rate and print the outcomes of the requests.

    Ctrl-C ends it early and prints the requests sent until then. The exit code is 2 if no request
    was answered.

    Example:
      python -m scoring_service loadtest --target 127.0.0.1:50051 --rate 200 --seconds 10
    """
    result = run_loadtest(config, security)
    print(to_json(result) if config.json else format_loadtest(result))
    if result["interrupted"]:
        raise KeyboardInterrupt
    if not result["answered"]:
        raise ServiceUnavailable(
            f"{config.target} answered none of {result['sent']} requests; look there, or give "
            "them a lower --rate or a longer --timeout-s"
        )


def run_loadtest(config: LoadtestConfig, security: ClientSecurity) -> dict[str, Any]:
    """Counts and latencies of the requests: those sent until Ctrl-C, where `interrupted`."""
    # Not an exception: from within gRPC it would leave a call that never ends.
    took_s = defaultdict[str, list[float]](list)
    with end_request() as stops:
        sent_per_s = _send(config, security, stops, took_s)
        interrupted = stops(0)
    answered_s, refused_s = took_s.pop("answered", []), took_s.pop("refused", [])
    failed = {name: len(seconds) for name, seconds in sorted(took_s.items())}
    return {
        "sent": len(answered_s) + len(refused_s) + sum(failed.values()),
        "sent_per_s": sent_per_s,
        "answered": len(answered_s),
        "refused": len(refused_s),
        "failed": failed,
        "answered_ms": percentiles_ms(answered_s) or None,
        "refused_ms": percentiles_ms(refused_s) or None,
        "interrupted": interrupted,
    }


def _send(
    config: LoadtestConfig,
    security: ClientSecurity,
    stops: Wait,
    took_s: defaultdict[str, list[float]],
) -> float:
    """Fill `took_s` with the latencies by outcome; returns the rate, requests per second."""
    lock, landed = threading.Lock(), threading.Semaphore(0)

    def done(rpc: grpc.Future, begun_s: float) -> None:
        seconds, code = time.perf_counter() - begun_s, rpc.code()
        names = {grpc.StatusCode.OK: "answered", CODE_OF[ServiceOverloaded]: "refused"}
        name = names.get(code) or type(from_rpc_error(rpc, config.target)).__name__
        with lock:
            took_s[name].append(seconds)
        landed.release()

    # The client shares the machine with the server: nothing is encoded or parsed under load.
    prompts = _random_prompts(config)
    requests = [write_prompt(prompt, "").SerializeToString() for prompt in prompts]
    gaps_s = np.random.default_rng(config.seed).exponential(1 / config.rate, len(prompts)).tolist()
    num_sent = 0
    with security.open(config.target) as channel:
        call = channel.unary_unary(f"/{SERVICE}/Score")
        due_s = started_s = time.perf_counter()
        for request, gap_s in zip(requests, gaps_s, strict=True):
            due_s += gap_s
            if stops(max(0.0, due_s - time.perf_counter())):
                break
            begun_s = time.perf_counter()
            rpc = call.future(request, timeout=config.timeout_s, metadata=security.metadata)
            rpc.add_done_callback(partial(done, begun_s=begun_s))
            num_sent += 1
        wall_s = time.perf_counter() - started_s
        for _ in range(num_sent):
            landed.acquire()
    return num_sent / wall_s


def format_loadtest(result: Mapping[str, Any]) -> str:
    """The result as a table."""
    failed = result["failed"]
    rows = [("sent", result["sent"], f"{result['sent_per_s']:.1f} per s")]
    for name in ("answered", "refused"):
        shares = result[f"{name}_ms"] or {}
        rows.append((name, result[name], ", ".join(f"{p} {ms:.1f} ms" for p, ms in shares.items())))
    causes = ", ".join(f"{name} {count}" for name, count in failed.items())
    rows.append(("failed", sum(failed.values()), causes))
    return "\n".join(f"{name:9} {count:7}   {details}".rstrip() for name, count, details in rows)


def _random_prompts(config: LoadtestConfig) -> list[str]:
    num = max(1, int(config.rate * config.seconds))
    random = np.random.default_rng(config.seed)
    sizes = np.clip(random.lognormal(3.2, 0.65, num), 3, 400).astype(int)
    return [f"{n}: {' '.join(random.choice(_WORDS, size))}" for n, size in enumerate(sizes)]


def percentiles_ms(seconds: Sequence[float]) -> dict[str, float]:
    """Percentiles in milliseconds; none without values."""
    return {f"p{p}": float(np.percentile(seconds, p) * 1e3) for p in (50, 90, 99) if seconds}
