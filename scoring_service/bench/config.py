"""Settings of the bench and the load test."""

from __future__ import annotations

from dataclasses import dataclass

from scoring_service.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchConfig:
    """Sizes of the bench's measures."""

    bundle: str = "mlruns/demo/bundle"
    """Folder of the bundle to serve."""
    precision: str = "auto"
    """fp32, int8, or auto (int8 where the bundle has it)."""
    rounds: int = 9
    """Turns that each peer takes; figures are medians over them."""
    slice_size: int = 80
    """Requests of one turn."""
    overload_s: float = 10.0
    """How long to overload, seconds."""
    num_shapes: int = 10_000
    """Prompts of random lengths over which memory may grow."""
    mlserver: bool = True
    """Compare with MLServer too; it is installed into an environment of its own if need be."""
    seed: int = 0
    """Of the prompts and arrival times."""
    json: bool = False
    """Print one JSON object."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadtestConfig:
    """Requests of a load test, and their rate."""

    target: str = "127.0.0.1:50051"
    """HOST:PORT of the service."""
    rate: float = 100.0
    """Requests per second, Poisson arrivals."""
    seconds: float = 10.0
    """How long, seconds."""
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
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; use more than 0")
