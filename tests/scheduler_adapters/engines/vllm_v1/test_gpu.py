"""vLLM on a GPU: no scheduler of ours changes an answer, a burst goes by rank, and the bench runs.

`python -m pytest -m gpu` runs these; with GPU_TESTS_ON=cpu they try themselves out without a GPU.
GPU_TESTS_ENGINE holds further arguments of vLLM's engine, as JSON. An engine each, a process each.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scheduler_adapters.timeline.timeline import read_timeline

pytestmark = pytest.mark.gpu

OFFLINE = "scheduler_adapters.engines.vllm_v1.offline"
GRAPHS = {
    "enforce_eager": False,
    "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
}
NEVER_SAID = 511
"""The last token of the tiny model's vocabulary, as the end of thinking."""


@pytest.fixture
def device() -> str:
    """Where the engine computes."""
    import torch

    if "GPU_TESTS_ON" not in os.environ and not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    if find_spec("vllm") is None:
        pytest.skip("there is no vLLM")
    return os.environ.get("GPU_TESTS_ON", "cuda")


def write_burst(path: Path, count: int = 60) -> Path:
    """Requests at 0 s of two classes, whose scores are their lengths, disturbed, without ties."""
    random = np.random.default_rng(0)
    rows = [
        {
            "prompt_tokens": int(random.integers(8, 100)),
            "output_tokens": (tokens := int(random.integers(4, 120))),
            "score": tokens + float(random.normal(0, 20)),
            "tbt_s": float(random.choice([0.01, 0.5])),
        }
        for _ in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(device: str, module: str, *arguments: str, **engine: Any) -> dict[str, Any]:
    """What a command prints with --json, of an engine whose answers no batch changes."""
    engine |= {} if device.startswith("cuda") else {"dtype": "float32"}
    engine |= json.loads(os.environ.get("GPU_TESTS_ENGINE", "{}"))
    done = subprocess.run(
        [sys.executable, "-m", *module.split(), *arguments, f"--engine={json.dumps(engine)}"],
        env={**os.environ, "VLLM_BATCH_INVARIANT": str(int(device.startswith("cuda")))},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return printed


@pytest.mark.parametrize("graphs", [{}, GRAPHS], ids=["eager", "graphs"])
def test_answers_are_those_of_the_stock_scheduler_under_every_kind_of_policy(
    device: str, graphs: dict[str, Any], tmp_path: Path
) -> None:
    if graphs and not device.startswith("cuda"):
        pytest.skip("CUDA graphs need a GPU")
    burst = write_burst(tmp_path / "burst.jsonl")
    settings: dict[str, dict[str, Any]] = {
        "stock": {},
        "fcfs": {},
        "pars": {},
        "slai": {"max_tokens": 64, "max_decodes": 4},
        "pascal": {"think_end": [NEVER_SAID], "quantum_tokens": 20, "max_decodes": 4},
    }
    found = {}
    for name, own in settings.items():
        arguments = [f"--requests={burst}", f"--scheduler={name}", f"--settings={json.dumps(own)}"]
        arguments += [f"--out={tmp_path / name}.jsonl", "--json"]
        printed = run(device, OFFLINE, *arguments, **graphs)
        assert printed["num_finished"] == 60, name
        found[name] = printed["tokens_sha256"]
    assert len(set(found.values())) == 1, found
    scores = [json.loads(line)["score"] for line in burst.read_text().splitlines()]
    started = read_timeline(tmp_path / "pars.jsonl").scheduled_s
    ranks = np.array(scores)[np.lexsort((scores, started))]  # those of one step are equals
    assert (np.diff(ranks) >= 0).all()
    assert (np.diff(read_timeline(tmp_path / "fcfs.jsonl").scheduled_s) >= 0).all()


def test_the_bench_compares_whole_engines_that_make_the_same_batches(device: str) -> None:
    load = ["--running=32", "--waiting=64", "--steps=100", "--throughput-rounds=2"]
    printed = run(device, "scheduler_adapters bench-engine", "--policy=pars", *load, "--json")
    assert printed["clock"] == ("wall" if device.startswith("cuda") else "steady")
    assert printed["steps_per_burst_ours"] == pytest.approx(
        printed["steps_per_burst_stock"], rel=0.02
    )
    assert 0.5 < printed["throughput_ratio"] < 2
    assert 0 < printed["added_us_per_step"] < printed["step_us_stock"]
