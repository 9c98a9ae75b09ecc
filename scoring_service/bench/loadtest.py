"""Load on a running service at a fixed rate, which slow answers do not lower."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from lengthwise.errors import ServiceUnavailable, require
from lengthwise.strict_json import to_json
from scoring_service.bench.load import open_loop, percentile_ms
from scoring_service.client.channel import ClientSecurity
from scoring_service.server.worker import EndRequest

_WORDS: Final = ("write", "explain", "short", "long", "story", "about", "code", "email", "poem")


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadtestConfig:
    """Requests of a load test, with different random prompts of about 30 words."""

    target: str = "127.0.0.1:50051"
    """HOST:PORT of the service."""
    rate: float = 100.0
    """Requests per second, Poisson arrivals."""
    seconds: float = 10.0
    """Duration of the load, seconds."""
    timeout_s: float = 0.1
    """Deadline of each request, seconds."""
    seed: int = 0
    """Of prompts and arrival times."""
    json: bool = False
    """Print one JSON object."""

    def __post_init__(self) -> None:
        for name in ("rate", "seconds", "timeout_s"):
            require(name, getattr(self, name), getattr(self, name) > 0, "more than 0")


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
    stop = EndRequest.on_signals()
    outcomes = open_loop(
        config.target,
        _random_prompts(config),
        per_s=config.rate,
        timeout_s=config.timeout_s,
        seed=config.seed,
        security=security,
        stop=stop,
    )
    return {
        "sent": outcomes.sent,
        "sent_per_s": outcomes.sent / outcomes.wall_s,
        "answered": len(outcomes.answered_s),
        "refused": len(outcomes.refused_s),
        "failed": dict(sorted(outcomes.failed.items())),
        "answered_ms": _percentiles(outcomes.answered_s),
        "refused_ms": _percentiles(outcomes.refused_s),
        "interrupted": stop.wait(0),
    }


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


def _percentiles(seconds: Sequence[float]) -> dict[str, float | None] | None:
    return {f"p{p}": percentile_ms(seconds, p) for p in (50, 90, 99)} if seconds else None
