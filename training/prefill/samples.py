"""Measured prefill latencies, from a table.

Columns of a table: `prompt_tokens`, `latency_s`, `peak_flop_per_s`; optional `batch_size` (prompts
of that length prefilled together, 1), `model`, `device`. `python -m scheduler_adapters
profile-prefill` writes such a table.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from lengthwise.bundle import sha256_of
from lengthwise.errors import DataError
from lengthwise.tables.reading import read_table, require_columns


@dataclass(frozen=True, kw_only=True)
class PrefillSamples:
    """Prefills of one model on one device."""

    table: pd.DataFrame
    """prompt_tokens, batch_size, latency_s; one row per run, every number > 0."""
    peak_flop_per_s: float
    """Best sustained rate of a large 16-bit matrix product, all GPUs of the instance together."""
    model: str
    device: str
    """Model and device under the names of the simulator's presets, where it has one of them."""
    source: dict[str, str]
    """Path and SHA-256 of the table."""


def read_samples(path: Path) -> PrefillSamples:
    """Read a table of runs of one model on one device."""
    frame = read_table(path)
    require_columns(frame, ("prompt_tokens", "latency_s", "peak_flop_per_s"), path)
    frame = frame.assign(batch_size=frame.get("batch_size", 1))
    for name in ("prompt_tokens", "batch_size", "latency_s", "peak_flop_per_s"):
        numbers = pd.to_numeric(frame[name], errors="coerce").to_numpy(float)
        wrong = np.flatnonzero(~(np.isfinite(numbers) & (numbers > 0)))
        if len(wrong):
            value, row = frame[name].tolist()[wrong[0]], int(frame.index[wrong[0]])
            raise DataError(
                f"{name} is {value!r}; give a number above 0 or drop the row", path=path, row=row
            )
    names = {}
    for column in ("model", "device"):
        found = sorted(frame[column].astype(str).unique()) if column in frame else ["unknown"]
        if len(found) > 1:
            raise DataError(f"{len(found)} of {column}: {', '.join(found)}; keep one", path=path)
        names[column] = found[0]
    return PrefillSamples(
        table=frame[["prompt_tokens", "batch_size", "latency_s"]],
        peak_flop_per_s=float(frame["peak_flop_per_s"].max()),
        source={"path": str(path), "sha256": sha256_of(path)},
        **names,
    )
