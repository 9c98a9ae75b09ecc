"""Settings of the bench."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchConfig:
    """What to measure, and for how long."""

    bundle: str = "mlruns/demo/bundle"
    """Folder of the bundle to serve."""
    precision: str = "auto"
    """fp32, int8, or auto (int8 where the bundle has it)."""
    rounds: int = 9
    """Turns that each peer takes; figures are medians over them."""
    slice_size: int = 80
    """Requests of one turn."""
    overload_s: float = 5.0
    """How long to overload, seconds."""
    num_shapes: int = 10_000
    """Prompts of random lengths over which memory may grow."""
    mlserver: bool = True
    """Compare with MLServer too; it is installed into an environment of its own if need be."""
    seed: int = 0
    """Of the prompts and arrival times."""
