"""vLLM on a GPU: no scheduler of ours changes an answer, a burst goes by rank, and the bench runs.

`python -m pytest -m gpu` runs these; with GPU_TESTS_ON=cpu they try themselves out without a GPU.
GPU_TESTS_ENGINE holds further arguments of vLLM's engine, as JSON. An engine each, a process each;
those of a test run side by side.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.scheduler_adapters.engines.vllm_v1.serve_burst import burst

pytestmark = pytest.mark.gpu

SERVE_BURST = "tests.scheduler_adapters.engines.vllm_v1.serve_burst"
GRAPHS = {
    "enforce_eager": False,
    "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
}
NEVER_SAID = 511
"""The last token of the tiny model's vocabulary, as the end of thinking."""


@pytest.fixture
def device():
    """Where the engine computes."""
    import torch

    if "GPU_TESTS_ON" not in os.environ and not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    if find_spec("vllm") is None:
        pytest.skip("there is no vLLM")
    return os.environ.get("GPU_TESTS_ON", "cuda")


def run(device: str, module: str, *arguments: str, **engine: Any) -> dict[str, Any]:
    """What a command prints as JSON, of an engine whose answers no batch changes.

    Its last argument is that of the engine.
    """
    engine |= {"gpu_memory_utilization": 0.1} if device.startswith("cuda") else {"dtype": "float32"}
    engine |= json.loads(os.environ.get("GPU_TESTS_ENGINE", "{}"))
    done = subprocess.run(
        [sys.executable, "-m", *module.split(), *arguments, json.dumps(engine)],
        cwd=Path(__file__).parents[4],
        env={**os.environ, "VLLM_BATCH_INVARIANT": str(int(device.startswith("cuda")))},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return printed


@pytest.mark.parametrize("graphs", [{}, GRAPHS], ids=["eager", "graphs"])
def test_answers_are_those_of_the_stock_scheduler(device, graphs):
    if graphs and not device.startswith("cuda"):
        pytest.skip("CUDA graphs need a GPU")
    settings: dict[str, dict[str, Any]] = {
        "stock": {},
        "fcfs": {},
        "pars": {"guard": "none"},
        "slai": {"max_tokens": 64, "max_decodes": 4},
        "pascal": {"think_end": [NEVER_SAID], "quantum_tokens": 20, "max_decodes": 4},
    }
    with ThreadPoolExecutor(len(settings) if device.startswith("cuda") else 1) as pool:
        made = {
            name: pool.submit(run, device, SERVE_BURST, name, json.dumps(own), **graphs)
            for name, own in settings.items()
        }
    found = {name: one.result() for name, one in made.items()}
    assert all(one["tokens"] == found["stock"]["tokens"] for one in found.values())
    scores = burst().score
    ranks = scores[np.lexsort((scores, found["pars"]["scheduled_s"]))]  # of one step: equals
    assert (np.diff(ranks) >= 0).all()
    assert (np.diff(found["fcfs"]["scheduled_s"]) >= 0).all()


def test_the_bench_compares_engines_with_the_same_batches(device):
    load = ["--running=32", "--waiting=64", "--steps=100", "--throughput-rounds=2"]
    printed = run(device, "benchmarks engine-step", "--policy=pars", *load, "--json", "--engine")
    assert printed["clock"] == ("wall" if device.startswith("cuda") else "steady")
    assert printed["steps_per_burst_ours"] == pytest.approx(
        printed["steps_per_burst_stock"], rel=0.02
    )
    assert 0.5 < printed["throughput_ratio"] < 2
    assert 0 < printed["added_us_per_step"] < printed["step_us_stock"]
