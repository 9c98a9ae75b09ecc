"""Measured prefill latencies, from a table or from published measurements.

Columns of a table: `prompt_tokens`, `latency_s`, `peak_flop_per_s`; optional `batch_size` (prompts
of that length prefilled together, 1), `model`, `device`. `python -m scheduler_adapters
profile-prefill` writes such a table.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from lengthwise.bundle import sha256_of
from lengthwise.errors import ConfigError, DataError
from lengthwise.tables.reading import read_table, require_columns
from training.data.cards import ENVIRONMENT

NUMBERS: Final = ("prompt_tokens", "batch_size", "latency_s", "peak_flop_per_s")
SPLITWISE: Final = "splitwise-sim/perf_model.csv"
GEMM: Final = {
    "a100-80gb": "aiconfigurator/a100_sxm/vllm-0.14.0/gemm_perf.parquet",
    "h100-80gb": "aiconfigurator/h100_sxm/vllm-0.24.0/gemm_perf.parquet",
}
"""Matrix products measured on the devices of Splitwise's table."""


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
    source: tuple[dict[str, str], ...]
    """Path and SHA-256 of each file that was read."""


def read_samples(path: Path) -> PrefillSamples:
    """Read a table of runs of one model on one device."""
    frame = read_table(path)
    require_columns(frame, ("prompt_tokens", "latency_s", "peak_flop_per_s"), path)
    frame = frame.assign(batch_size=frame.get("batch_size", 1))
    for name in NUMBERS:
        numbers = pd.to_numeric(frame[name], errors="coerce").to_numpy(float)
        wrong = np.flatnonzero(~(np.isfinite(numbers) & (numbers > 0)))
        if len(wrong):
            value, row = frame[name].tolist()[wrong[0]], int(frame.index[wrong[0]])
            text = f"{name} is {value!r}; give a number above 0 or drop the row"
            raise DataError(text, path=path, row=row)
    names = {}
    for column in ("model", "device"):
        found = sorted(frame[column].astype(str).unique()) if column in frame else ["unknown"]
        if len(found) > 1:
            raise DataError(f"{len(found)} of {column}: {', '.join(found)}; keep one", path=path)
        names[column] = found[0]
    return PrefillSamples(
        table=frame[["prompt_tokens", "batch_size", "latency_s"]],
        peak_flop_per_s=float(frame["peak_flop_per_s"].max()),
        source=(_origin(path),),
        **names,
    )


def published_samples(name: str, data_dir: str | None) -> PrefillSamples:
    """Return Splitwise's measurements of MODEL/HARDWARE/GPUS, e.g. llama2-70b/a100-80gb/4.

    The peak is the best BF16 product measured on that GPU (aiconfigurator), times the GPUs.
    """
    folder = data_dir or os.environ.get(ENVIRONMENT)
    if not folder:
        raise ConfigError(f"no data folder for profile {name!r}; give --data-dir or ${ENVIRONMENT}")
    path = Path(folder, SPLITWISE)
    frame = read_table(path)
    frame = frame[(frame["batch_size"] == 1) & frame["hardware"].isin(list(GEMM))]
    keys = frame["model"] + "/" + frame["hardware"] + "/" + frame["tensor_parallel"].astype(str)
    if name not in set(keys):
        raise DataError(f"no profile {name!r}; use one of {', '.join(sorted(set(keys)))}")
    rows = frame[keys == name].assign(latency_s=lambda rows: rows["prompt_time"] / 1000)
    table = rows.rename(columns={"prompt_size": "prompt_tokens"}).reset_index(drop=True)
    model, hardware, gpus = name.split("/")
    gemm = Path(folder, GEMM[hardware])
    products = read_table(gemm).query("gemm_dtype == 'bfloat16'")
    flop = 2.0 * products["m"] * products["n"] * products["k"]
    return PrefillSamples(
        table=table[["prompt_tokens", "batch_size", "latency_s"]],
        peak_flop_per_s=float((flop / (products["latency"] / 1000)).max()) * int(gpus),
        model=model.replace("llama2", "llama-2"),
        device=f"{gpus}x-{hardware.removesuffix('b')}",
        source=(_origin(path), _origin(gemm)),
    )


def _origin(path: Path) -> dict[str, str]:
    return {"path": str(path), "sha256": sha256_of(path)}
