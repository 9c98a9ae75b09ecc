"""transformers on a GPU: the same answers in the order of ranks, and a prefill profile."""

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest

from scheduler_adapters.__main__ import main
from tests.scheduler_adapters.engines.transformers_batching.test_rank_scheduler import (
    make_manager,
    results_of,
)

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def device():
    """Where torch runs."""
    import torch

    if "GPU_TESTS_ON" not in os.environ and not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    return os.environ.get("GPU_TESTS_ON", "cuda")


def answers(model: Any, policy_name: str, prompts: list[list[int]]) -> dict[str, list[int]]:
    """Request -> its tokens, under a policy with eight seats."""
    from scheduler_adapters.engines.transformers_batching.rank_scheduler import (
        require_ours,
        use_policy,
    )
    from scheduler_adapters.policy import load_policy

    hints: dict[str, Mapping[str, Any]] = {}
    scheduler_type = use_policy(load_policy(policy_name), hints)
    manager = make_manager(model, scheduler_type, max_requests_per_batch=8)
    for number, prompt in enumerate(prompts):
        hints[str(number)] = {"lengthwise_score": float(-number)}
        manager.add_request(prompt, request_id=str(number), max_new_tokens=5 + number)
    manager.start()
    try:
        require_ours(manager)
        return results_of(manager, len(prompts))
    finally:
        manager.stop(block=True)


def test_another_order_changes_no_answer(device):
    """In float32: in bfloat16 two tokens may be so close that who shares a step decides."""
    import torch
    from transformers import AutoModelForCausalLM

    from scheduler_adapters.engines.random_model import llama_config

    torch.manual_seed(0)
    config = llama_config("tiny", max_tokens=256)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(device).eval()
    random = np.random.default_rng(5)
    prompts = [random.integers(3, 512, size).tolist() for size in random.integers(1, 60, 24)]
    under_fcfs, under_pars = (answers(model, name, prompts) for name in ("fcfs", "pars"))
    assert list(under_fcfs) != list(under_pars)
    assert under_fcfs == under_pars
    assert [len(under_fcfs[str(number)]) for number in range(24)] == list(range(5, 29))


def test_longer_prompts_take_longer_in_the_profile(device, tmp_path, capsys):
    from training.__main__ import main as training

    lengths = [512, 2048, 8192] if device.startswith("cuda") else [64, 256, 1024]
    samples, cost = tmp_path / "prefill.csv", tmp_path / "cost.json"
    arguments = ["--shape", "small", "--prompt_tokens", str(lengths)]
    arguments += ["--device", device, "--repeats", "3", "--out", str(samples), "--json"]
    assert main(["profile-prefill", *arguments]) == 0
    table = pd.read_csv(samples)
    medians = table.groupby("prompt_tokens").median(numeric_only=True)
    assert (np.diff(medians["latency_s"]) > 0).all()
    assert (table["peak_flop_per_s"] > 0).all()
    if device.startswith("cuda"):
        shortest = medians.loc[lengths[0]]
        assert shortest["latency_s"] < shortest["eager_s"]  # launches, which a graph spares
    arguments = ["calibrate", "--samples", str(samples), "--out", str(cost), "--json"]
    assert training([*arguments, "--mlruns-dir", str(tmp_path / "runs")]) == 0
    fitted = json.loads(cost.read_text())
    assert fitted["alpha"] >= 0
    assert fitted["alpha"] + fitted["beta"] > 0
    assert fitted["num_samples"] == len(table) == 3 * 3
