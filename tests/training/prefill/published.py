"""Published prefill latencies as a table for `calibrate`, from the folder $LENGTHWISE_DATA.

    python tests/training/prefill/published.py llama2-70b/a100-80gb/4 > prefill.csv
    python -m training calibrate --samples prefill.csv

Splitwise's latencies of MODEL/HARDWARE/GPUS. The peak is the best BF16 product measured on that GPU
(aiconfigurator), times the GPUs.
"""

import os
import sys
from pathlib import Path
from typing import Final

import pandas as pd

SPLITWISE: Final = "splitwise-sim/perf_model.csv"
GEMM: Final = {
    "a100-80gb": "aiconfigurator/a100_sxm/vllm-0.14.0/gemm_perf.parquet",
    "h100-80gb": "aiconfigurator/h100_sxm/vllm-0.24.0/gemm_perf.parquet",
}
"""Matrix products measured on the devices of Splitwise's table."""


def samples(name: str, folder: Path) -> pd.DataFrame:
    """Return the runs of a profile, one per row."""
    model, hardware, gpus = name.split("/")
    frame = pd.read_csv(folder / SPLITWISE).query("batch_size == 1")
    rows = frame[(frame["model"] == model) & (frame["hardware"] == hardware)]
    rows = rows[rows["tensor_parallel"] == int(gpus)]
    products = pd.read_parquet(folder / GEMM[hardware]).query("gemm_dtype == 'bfloat16'")
    flop = 2.0 * products["m"] * products["n"] * products["k"]
    return pd.DataFrame(
        {
            "prompt_tokens": rows["prompt_size"],
            "latency_s": rows["prompt_time"] / 1000,
            "peak_flop_per_s": float((flop / (products["latency"] / 1000)).max()) * int(gpus),
            "model": model.replace("llama2", "llama-2"),
            "device": f"{gpus}x-{hardware.removesuffix('b')}",
        }
    )


if __name__ == "__main__":
    samples(sys.argv[1], Path(os.environ["LENGTHWISE_DATA"])).to_csv(sys.stdout, index=False)
