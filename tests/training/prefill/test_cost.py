"""The fitted prefill cost is the one that made the latencies, with its errors."""

import logging
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st

from lengthwise.errors import DataError
from training.prefill.cost import fit_cost
from training.prefill.samples import PrefillSamples

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


def test_r2_is_the_share_of_the_variance_that_the_fit_explains(
    caplog: pytest.LogCaptureFixture,
) -> None:
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
