"""The fitted prefill cost is the one that made the latencies, and it says how good it is."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scoring_service.errors import DataError
from training.__main__ import main
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


@settings(max_examples=25)
@given(st.floats(0, 1e7), st.floats(1e6, 1e12))
def test_the_fit_finds_the_cost_that_made_the_latencies(alpha: float, beta: float) -> None:
    cost = fit_cost(samples(table(alpha, beta)))
    longest = max(LENGTHS)
    fitted = cost.alpha * longest**2 + cost.beta * longest
    assert fitted == pytest.approx(alpha * longest**2 + beta * longest, rel=1e-4)
    assert cost.r2 == pytest.approx(1)
    assert cost.held_out_error < 1e-3


def test_one_disturbed_length_bends_the_fit_less_than_least_squares() -> None:
    frame = table()
    frame.loc[frame["prompt_tokens"] == 2048, "latency_s"] *= 2
    cost = fit_cost(samples(frame))
    size, length = frame["batch_size"].to_numpy(float), frame["prompt_tokens"].to_numpy(float)
    work = np.column_stack([size * length**2, size * length]) / [1e6, 1]
    plain = np.linalg.lstsq(work, frame["latency_s"] * PEAK, rcond=None)[0] / [1e6, 1]
    assert abs(cost.alpha / 5.2e5 - 1) < 0.5 * abs(plain[0] / 5.2e5 - 1)
    assert abs(cost.beta / 1.3e10 - 1) < 0.5 * abs(plain[1] / 1.3e10 - 1)


def test_a_disturbed_run_among_several_changes_nothing() -> None:
    frame = table(repeats=3)
    frame.loc[::3, "latency_s"] *= 10
    assert fit_cost(samples(frame)).alpha == pytest.approx(5.2e5, rel=1e-4)


def test_a_cost_never_falls_with_length() -> None:
    frame = table(0.0)
    frame["latency_s"] = np.sqrt(frame["latency_s"])  # Least squares would make alpha negative.
    cost = fit_cost(samples(frame))
    assert cost.alpha >= 0
    assert cost.beta >= 0


def test_a_fixed_cost_shows_in_the_error_on_the_shortest_prompts() -> None:
    cost = fit_cost(samples(table(fixed_s=0.05)))
    points = cost.points
    errors = (points["held_out_s"] / points["measured_s"] - 1).abs()
    assert errors.max() == pytest.approx(cost.worst_held_out_error)
    assert points.loc[errors.idxmax(), "prompt_tokens"] == min(LENGTHS)
    assert cost.fixed_s == pytest.approx(0.05, rel=1e-3)
    assert cost.held_out_error_with_fixed < 1e-3 < cost.held_out_error


def test_latencies_that_fall_with_length_and_poor_fits_are_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    frame = table()
    frame["latency_s"] = frame["latency_s"].to_numpy()[::-1]
    with caplog.at_level(logging.WARNING):
        fit_cost(samples(frame))
    assert "256 tokens took" in caplog.text
    assert "do not route by this fit" in caplog.text


@pytest.mark.parametrize("lengths", [[512], [128, 512]])
def test_fewer_than_three_lengths_are_refused(lengths: list[int]) -> None:
    frame = table()
    with pytest.raises(DataError, match=f"{len(lengths)} prompt length.*measure 3 or more"):
        fit_cost(samples(frame[frame["prompt_tokens"].isin(lengths)]))


def test_the_file_turns_lengths_into_the_measured_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "prefill.csv", tmp_path / "cost.json"
    frame = table().assign(peak_flop_per_s=PEAK, model="llama", device="v100")
    frame.to_csv(source, index=False)
    run = ["calibrate", "--samples", str(source), "--out", str(out), "--json"]
    assert main([*run, "--mlruns-dir", str(tmp_path / "mlruns")]) == 0
    printed = json.loads(capsys.readouterr().out)
    cost = json.loads(out.read_text())
    assert {key: printed[key] for key in cost} == cost
    assert Path(printed["figure"]).is_file()
    for row in frame[frame["batch_size"] == 1].itertuples():
        flop = cost["alpha"] * row.prompt_tokens**2 + cost["beta"] * row.prompt_tokens
        assert flop / cost["peak_flop_per_s"] == pytest.approx(row.latency_s, rel=1e-3)
    assert (cost["model"], cost["device"], cost["num_samples"]) == ("llama", "v100", 14)
    assert (cost["min_prompt_tokens"], cost["max_prompt_tokens"]) == (128, 8192)
    assert len(cost["source"][0]["sha256"]) == 64
    assert main([*run[:-1], "--mlruns-dir", str(tmp_path / "mlruns")]) == 0
    assert "R^2 1.0000" in capsys.readouterr().out


def test_a_place_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "prefill.csv"
    table().assign(peak_flop_per_s=PEAK).to_csv(source, index=False)
    run = ["calibrate", "--samples", str(source), "--mlruns-dir", str(tmp_path / "mlruns")]
    for place in (tmp_path, source / "cost.json"):
        assert main([*run, "--out", str(place)]) == 2
        assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"latency_s": 0.0}, "latency_s is 0.0; give a number above 0"),
        ({"latency_s": -1.0}, "row 0: latency_s is -1.0"),
        ({"latency_s": float("nan")}, "latency_s is nan"),
        ({"latency_s": "fast"}, "latency_s is 'fast'"),
        ({"prompt_tokens": 0}, "prompt_tokens is 0"),
        ({"prompt_tokens": None}, "no column 'prompt_tokens'; the columns are: "),
        ({"peak_flop_per_s": None}, "does not say the peak rate; give --peak-flop-per-s"),
        ({"model": [f"m{n % 2}" for n in range(14)]}, "holds 2 of model: m0, m1; choose by"),
    ],
)
def test_bad_tables_are_named_in_one_line(
    changes: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "prefill.csv"
    frame = table().assign(peak_flop_per_s=PEAK).assign(**changes)
    frame.drop(columns=[k for k, v in changes.items() if v is None]).to_csv(source, index=False)
    assert main(["calibrate", "--samples", str(source)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --samples FILE or --profile NAME"),
        (["--samples", "a.csv", "--profile", "b"], "give either"),
        (["--samples", "a.csv", "--peak-flop-per-s", "-1"], "peak_flop_per_s is -1.0"),
        (["--profile", "b", "--model", "m"], "go with --samples only"),
    ],
)
def test_contradicting_options_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", *arguments]) == 2
    assert message in capsys.readouterr().err


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
