"""`check-golden`: equal where nothing changed, and a failure where something did."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lengthwise.errors import DataError
from scheduler_adapters.__main__ import main
from scheduler_adapters.benchmarks.check_golden import golden_setting, simulate_golden
from scheduler_adapters.policies.prefill_first import PrefillFirst
from scheduler_adapters.policies.sarathi import Sarathi
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.latency.time_tables import TableLatency
from scheduler_adapters.workload.arrivals import poisson_arrivals_s
from scheduler_adapters.workload.requests import make_requests


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Golden runs of our own making: tables, and two files with what they give."""
    random = np.random.default_rng(0)
    np.savez(
        tmp_path / "tables.npz",
        linear_ms=0.3 + np.arange(4104) * 1e-3,
        kv_save_ms=0.01 + np.arange(4097) * 1e-5,
        decode_attention_ms=random.random((129, 66)) * 0.1,
        prefill_attention_ms=random.random((66, 4097)) * 0.2,
    )
    requests = make_requests(
        prompt_tokens=random.integers(1, 900, 120),
        output_tokens=random.integers(1, 200, 120),
        arrival_s=poisson_arrivals_s(120, rate_per_s=40, seed=0),
    )
    latency = TableLatency.load(tmp_path / "tables.npz")
    for name in ("sarathi_r2_n120_q40.0_blocks400_chunk256", "vllm_r1_n120_q40.0"):
        path = tmp_path / f"{name}.parquet"
        timeline = simulate_golden(path, requests, latency)
        pd.DataFrame(
            {
                "arrival_s": requests.arrival_s,
                "num_prompt_tokens": requests.prompt_tokens,
                "num_output_tokens": requests.output_tokens,
                "first_token_s": timeline.first_token_s,
                "finished_s": timeline.finished_s,
            }
        ).to_parquet(path)
    return tmp_path


def test_equal_runs_pass(folder, capsys):
    assert main(["check-golden", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(line.endswith("equal") for line in lines)


def test_a_difference_of_two_nanoseconds_fails(folder, capsys):
    path = folder / "vllm_r1_n120_q40.0.parquet"
    table = pd.read_parquet(path)
    table.loc[7, "finished_s"] += 2e-9
    table.to_parquet(path)
    assert main(["check-golden", str(folder)]) == 1
    assert "DIFFERENT" in capsys.readouterr().out


def test_the_name_gives_the_setting():
    latency = AffineLatency(base_s=0.01)
    path = Path("sarathi_r8_n10000_q51.6_blocks5000_chunk256.parquet")
    make_policy, instance, replicas = golden_setting(path, latency)
    assert (replicas, instance.kv_blocks, instance.max_tokens) == (8, 5000, 256)
    assert isinstance(make_policy(), Sarathi)
    make_other, plain, replicas = golden_setting(Path("vllm_r1_n10_q3.parquet"), latency)
    assert (replicas, plain.kv_blocks, plain.max_tokens) == (1, 30208, 4096)
    assert isinstance(make_other(), PrefillFirst)
    with pytest.raises(DataError, match="gives no setting"):
        golden_setting(Path("fcfs_r1.parquet"), latency)


@pytest.mark.parametrize("what", ["empty", "no tables", "no column"])
def test_a_folder_that_is_none_is_one_clear_line(folder, what, capsys):
    if what == "empty":
        shutil.rmtree(folder)
        folder.mkdir()
    elif what == "no tables":
        (folder / "tables.npz").unlink()
    else:
        path = folder / "vllm_r1_n120_q40.0.parquet"
        pd.read_parquet(path).drop(columns="finished_s").to_parquet(path)
    assert main(["check-golden", str(folder)]) == 2
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.data
def test_the_golden_runs_of_vidur_are_reproduced(data_folder):
    assert main(["check-golden", str(data_folder / "vidur-golden")]) == 0
