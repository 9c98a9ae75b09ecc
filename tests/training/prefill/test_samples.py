"""Samples: rows of one model and device, a peak rate, only numbers above 0."""

from pathlib import Path

import pandas as pd
import pytest

from lengthwise.errors import DataError
from tests.training.prefill.published import GEMM, SPLITWISE, samples
from tests.training.prefill.test_cost import LENGTHS
from training.prefill.samples import read_samples


def test_a_profile_takes_its_peak_from_the_fastest_product(
    tmp_path: Path,
) -> None:
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
    samples("llama/a100-80gb/2", tmp_path).to_csv(tmp_path / "prefill.csv", index=False)
    found = read_samples(tmp_path / "prefill.csv")
    assert found.peak_flop_per_s == pytest.approx(2 * 1e6 * 2 / 2e-3)  # two GPUs, 2 FLOP, 2 ms
    assert found.table["latency_s"].tolist() == [0.002 * length for length in LENGTHS]
    assert (found.model, found.device) == ("llama", "2x-a100-80g")


def _table(tmp_path: Path, **columns: object) -> Path:
    path = tmp_path / "runs.csv"
    pd.DataFrame({"prompt_tokens": [8, 16, 32], "latency_s": [0.1, 0.2, 0.4], **columns}).to_csv(
        path, index=False
    )
    return path


def test_a_table_is_of_one_model_on_one_device_and_has_a_peak(
    tmp_path: Path,
) -> None:
    found = read_samples(_table(tmp_path, model="b", device="y", peak_flop_per_s=[1, 3, 2]))
    assert found.table.iloc[2].to_dict() == {
        "prompt_tokens": 32, "batch_size": 1, "latency_s": 0.4
    }  # fmt: skip
    assert (found.model, found.device, found.peak_flop_per_s) == ("b", "y", 3.0)
    with pytest.raises(DataError, match="2 of model: a, b; keep one"):
        read_samples(_table(tmp_path, model=["a", "b", "b"], peak_flop_per_s=1))


@pytest.mark.parametrize("column", ["prompt_tokens", "batch_size", "latency_s", "peak_flop_per_s"])
@pytest.mark.parametrize("value", [0, -1, "", "fast", "inf"])
def test_a_number_that_is_none_above_0_is_refused_with_its_row(
    tmp_path: Path, column: str, value: object
) -> None:
    sound = {"prompt_tokens": 8, "batch_size": 1, "latency_s": 0.1, "peak_flop_per_s": 1e12}
    columns: dict[str, list[object]] = {name: [number] * 3 for name, number in sound.items()}
    read_samples(_table(tmp_path, **columns))
    columns[column][1] = value
    path = _table(tmp_path, **columns)
    with pytest.raises(DataError, match=f"{column} is .*above 0") as caught:
        read_samples(path)
    assert caught.value.row == 1
