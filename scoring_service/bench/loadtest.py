"""Load on a running service at a fixed rate, which slow answers do not lower.

With `--seconds 600 --pid PID` it is a soak that also watches memory.
"""

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from lengthwise.errors import ConfigError, DataError, require
from scoring_service.bench.load import open_loop, percentile_ms
from scoring_service.bench.processes import rss_bytes
from scoring_service.client.channel import ClientSecurity
from scoring_service.server.worker import EndRequest

_WORDS: Final = ("write", "explain", "short", "long", "story", "about", "code", "email", "poem")


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadtestConfig:
    """Requests of a load test, and their rate."""

    target: str = "127.0.0.1:50051"
    """HOST:PORT of the service."""
    rate: float = 100.0
    """Requests per second, Poisson arrivals."""
    seconds: float = 10.0
    """Duration of the load, seconds."""
    timeout_s: float = 0.1
    """Deadline of each request, seconds."""
    prompts: str | None = None
    """Text file with one prompt per line; null makes different random ones of about 30 words."""
    pid: int | None = None
    """Process of the service on this machine, to report the growth of its memory."""
    seed: int = 0
    """Of prompts and arrival times."""
    json: bool = False
    """Print one JSON object."""

    def __post_init__(self) -> None:
        for name in ("rate", "seconds", "timeout_s"):
            require(name, getattr(self, name), getattr(self, name) > 0, "more than 0")


def run_loadtest(config: LoadtestConfig, security: ClientSecurity) -> dict[str, Any]:
    """Counts and latencies of the requests: those sent until Ctrl-C, where `interrupted`.

    With a pid `rss_growth_fraction` is None where that process ended meanwhile.

    Raises:
        ConfigError: there is no such process to begin with.
        DataError: the prompts cannot be read, or there are none.
    """
    prompts = _make_prompts(config)
    try:
        before = 0 if config.pid is None else rss_bytes(config.pid)
    except OSError as error:
        raise ConfigError(
            f"no process {config.pid}; give the pid of the service, or no --pid"
        ) from error
    stop = EndRequest()
    with _made_by_ctrl_c(stop):
        outcomes = open_loop(
            config.target,
            prompts,
            per_s=config.rate,
            timeout_s=config.timeout_s,
            seed=config.seed,
            security=security,
            stop=stop,
        )
    summary = {
        "sent": outcomes.sent,
        "sent_per_s": outcomes.sent / outcomes.wall_s,
        "answered": len(outcomes.answered_s),
        "refused": len(outcomes.refused_s),
        "failed": dict(sorted(outcomes.failed.items())),
        "answered_ms": _percentiles(outcomes.answered_s),
        "refused_ms": _percentiles(outcomes.refused_s),
        "interrupted": stop.wait(0),
    }
    if config.pid is not None:
        summary["rss_growth_fraction"] = None
        with suppress(OSError):
            summary["rss_growth_fraction"] = rss_bytes(config.pid) / before - 1
    return summary


@contextmanager
def _made_by_ctrl_c(stop: EndRequest) -> Iterator[None]:
    # Only the second Ctrl-C is an exception. From within gRPC an exception would leave a call that
    # never ends, and a channel that waits for it when it is closed.
    def first(number: int, frame: object) -> None:
        stop.make()
        signal.signal(signal.SIGINT, usual)

    usual = signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def format_loadtest(result: Mapping[str, Any]) -> str:
    """The result as a table."""
    failed = result["failed"]
    rows = [("sent", result["sent"], f"{result['sent_per_s']:.1f} per s")]
    for name in ("answered", "refused"):
        shares = result[f"{name}_ms"] or {}
        rows.append((name, result[name], ", ".join(f"{p} {ms:.1f} ms" for p, ms in shares.items())))
    causes = ", ".join(f"{name} {count}" for name, count in failed.items())
    rows.append(("failed", sum(failed.values()), causes))
    lines = [f"{name:9} {count:7}   {details}".rstrip() for name, count, details in rows]
    if result.get("rss_growth_fraction") is not None:
        lines.append(f"memory    {result['rss_growth_fraction']:+7.1%}")
    return "\n".join(lines)


def _make_prompts(config: LoadtestConfig) -> list[str]:
    num = max(1, int(config.rate * config.seconds))
    random = np.random.default_rng(config.seed)
    if config.prompts is None:
        sizes = np.clip(random.lognormal(3.2, 0.65, num), 3, 400).astype(int)
        return [f"{n}: {' '.join(random.choice(_WORDS, size))}" for n, size in enumerate(sizes)]
    try:
        lines = [line for line in Path(config.prompts).read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"cannot be read ({error}); give a text file", path=config.prompts
        ) from error
    if not lines:
        raise DataError("holds no prompt; write one per line", path=config.prompts)
    return [lines[int(n)] for n in random.integers(0, len(lines), num)]


def _percentiles(seconds: Sequence[float]) -> dict[str, float | None] | None:
    return {f"p{p}": percentile_ms(seconds, p) for p in (50, 90, 99)} if seconds else None
