"""The fitted prefill cost is the one that made the latencies; a table holds numbers above 0."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st

from lengthwise.errors import DataError
from tests.training.prefill import published
from training.prefill.cost import PrefillSamples, fit_cost, read_samples

PEAK = 1e14


LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)


def table(
    alpha: float = 5.2e5, beta: float = 1.3e10, *, fixed_s: float = 0.0, repeats: int = 1
) -> pd.DataFrame:
    rows = [
        {
            "prompt_tokens": length,
            "batch_size": size,
            "latency_s": fixed_s + size * (alpha * length**2 + beta * length) / PEAK,
        }
        for size in (1, 4)
        for length in LENGTHS
        for _ in range(repeats)
    ]
    return pd.DataFrame(rows)


def samples(frame: pd.DataFrame) -> PrefillSamples:
    return PrefillSamples(table=frame, peak_flop_per_s=PEAK, model="m", device="d", source=())


def _fitted_s(cost: dict[str, Any], frame: pd.DataFrame) -> pd.Series:
    tokens = frame["prompt_tokens"]
    flop = frame["batch_size"] * (cost["alpha"] * tokens**2 + cost["beta"] * tokens)
    return flop / cost["peak_flop_per_s"]


@settings(max_examples=25)
@given(st.floats(0, 1e7), st.floats(1e6, 1e12))
def test_the_fit_finds_the_cost_that_made_the_latencies(alpha: float, beta: float) -> None:
    cost = fit_cost(samples(table(alpha, beta)))
    longest = max(LENGTHS)
    fitted = cost["alpha"] * longest**2 + cost["beta"] * longest
    assert fitted == pytest.approx(alpha * longest**2 + beta * longest, rel=1e-4)
    assert cost["r2"] == pytest.approx(1)
    assert cost["held_out_error"] < 1e-3


def test_a_disturbed_run_among_several_changes_nothing() -> None:
    frame = table(repeats=3)
    frame.loc[::3, "latency_s"] *= 10
    assert fit_cost(samples(frame))["alpha"] == pytest.approx(5.2e5, rel=1e-4)


def test_a_cost_never_falls_with_length() -> None:
    frame = table(0.0)
    frame["latency_s"] = np.sqrt(frame["latency_s"])  # Least squares would make alpha negative.
    cost = fit_cost(samples(frame))
    assert cost["alpha"] >= 0
    assert cost["beta"] >= 0


def test_a_fixed_cost_shows_in_the_error_on_the_shortest_prompts() -> None:
    frame = table(fixed_s=0.05)
    cost = fit_cost(samples(frame))
    without = fit_cost(samples(frame[frame["prompt_tokens"] > min(LENGTHS)]))
    shortest = frame[frame["prompt_tokens"] == min(LENGTHS)]
    errors = (_fitted_s(without, shortest) / shortest["latency_s"] - 1).abs()
    assert errors.max() == pytest.approx(cost["worst_held_out_error"])
    assert errors.max() > 2 * cost["held_out_error"]


def test_poor_fits_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    frame = table()
    frame["latency_s"] = frame["latency_s"].to_numpy()[::-1]
    with caplog.at_level(logging.WARNING):
        fit_cost(samples(frame))
    assert "do not route by this fit" in caplog.text


@pytest.mark.parametrize("lengths", [[512], [128, 512]])
def test_fewer_than_three_lengths_are_refused(lengths: list[int]) -> None:
    frame = table()
    with pytest.raises(DataError, match=f"{len(lengths)} prompt length.*measure 3 or more"):
        fit_cost(samples(frame[frame["prompt_tokens"].isin(lengths)]))


def test_r2_is_the_share_of_the_variance_that_the_fit_explains(caplog):
    frame = table()
    frame["latency_s"] *= np.tile([1.03, 0.97], len(frame) // 2)
    with caplog.at_level(logging.WARNING):
        cost = fit_cost(samples(frame))
    missed_s = frame["latency_s"] - _fitted_s(cost, frame)
    assert cost["r2"] == pytest.approx(
        1 - (missed_s**2).sum() / (len(frame) * frame["latency_s"].var(ddof=0)), rel=1e-9
    )
    assert 0.99 < cost["r2"] < 1
    assert "R^2" not in caplog.text


def test_a_profile_takes_its_peak_from_the_fastest_product(tmp_path):
    for name in (published.SPLITWISE, published.GEMM["a100-80gb"]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {"model": "llama", "hardware": hardware, "tensor_parallel": 2, "batch_size": size,
         "prompt_size": length, "prompt_time": 2.0 * length}
        for hardware in ("a100-80gb", "abacus") for size in (1, 8) for length in LENGTHS
    ]  # fmt: skip
    pd.DataFrame(rows).to_csv(tmp_path / published.SPLITWISE, index=False)
    products = pd.DataFrame({"m": [100, 100], "n": [100, 100], "k": [100, 100]})
    products = products.assign(gemm_dtype=["bfloat16", "fp8"], latency=[2.0, 1.0])
    products.to_parquet(tmp_path / published.GEMM["a100-80gb"])
    published.samples("llama/a100-80gb/2", tmp_path).to_csv(tmp_path / "prefill.csv", index=False)
    found = read_samples(tmp_path / "prefill.csv")
    assert found.peak_flop_per_s == pytest.approx(2 * 1e6 * 2 / 2e-3)  # two GPUs, 2 FLOP, 2 ms
    assert found.table["latency_s"].tolist() == [0.002 * length for length in LENGTHS]
    assert (found.model, found.device) == ("llama", "2x-a100-80g")


def _written(tmp_path: Path, **columns: object) -> Path:
    path = tmp_path / "runs.csv"
    pd.DataFrame({"prompt_tokens": [8, 16, 32], "latency_s": [0.1, 0.2, 0.4], **columns}).to_csv(
        path, index=False
    )
    return path


def test_a_table_is_of_one_model_on_one_device_and_has_a_peak(tmp_path):
    found = read_samples(_written(tmp_path, model="b", device="y", peak_flop_per_s=[1, 3, 2]))
    assert found.table.iloc[2].to_dict() == {
        "prompt_tokens": 32, "batch_size": 1, "latency_s": 0.4
    }  # fmt: skip
    assert (found.model, found.device, found.peak_flop_per_s) == ("b", "y", 3.0)
    with pytest.raises(DataError, match="2 of model: a, b; keep one"):
        read_samples(_written(tmp_path, model=["a", "b", "b"], peak_flop_per_s=1))


@pytest.mark.parametrize("column", ["prompt_tokens", "batch_size", "latency_s", "peak_flop_per_s"])
@pytest.mark.parametrize("value", [0, -1, "", "fast", "inf"])
def test_a_number_that_is_none_above_0_is_refused_with_its_row(tmp_path, column, value):
    sound = {"prompt_tokens": 8, "batch_size": 1, "latency_s": 0.1, "peak_flop_per_s": 1e12}
    columns: dict[str, list[object]] = {name: [number] * 3 for name, number in sound.items()}
    read_samples(_written(tmp_path, **columns))
    columns[column][1] = value
    path = _written(tmp_path, **columns)
    with pytest.raises(DataError, match=f"{column} is .*above 0") as caught:
        read_samples(path)
    assert caught.value.row == 1
