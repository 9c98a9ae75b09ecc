"""Samples: rows of one model and device, a peak rate, only numbers above 0."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tests.training.prefill.test_cost import LENGTHS
from training.__main__ import main


def test_a_published_profile_takes_its_peak_from_the_fastest_measured_product(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from training.prefill.samples import GEMM, SPLITWISE, published_samples

    for name in (SPLITWISE, GEMM["a100-80gb"]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {"model": "llama", "hardware": hardware, "tensor_parallel": 2, "batch_size": size,
         "prompt_size": length, "prompt_time": 2.0 * length}
        for hardware in ("a100-80gb", "abacus") for size in (1, 8) for length in LENGTHS
    ]  # fmt: skip
    pd.DataFrame(rows).to_csv(tmp_path / SPLITWISE, index=False)
    products = pd.DataFrame({"m": [100, 100], "n": [100, 100], "k": [100, 100]})
    products = products.assign(gemm_dtype=["bfloat16", "fp8"], latency=[2.0, 1.0])
    products.to_parquet(tmp_path / GEMM["a100-80gb"])
    found = published_samples("llama/a100-80gb/2", str(tmp_path))
    assert found.peak_flop_per_s == pytest.approx(2 * 1e6 * 2 / 2e-3)  # two GPUs, 2 FLOP, 2 ms
    assert found.table["latency_s"].tolist() == [0.002 * length for length in LENGTHS]
    assert main(["calibrate", "--profile", "llama/abacus/2", "--data-dir", str(tmp_path)]) == 2
    assert "no profile 'llama/abacus/2'; use one of llama/a100-80gb/2" in capsys.readouterr().err
