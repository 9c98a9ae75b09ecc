"""The KV memory of an engine for its driver, and a run of the driver on the CPU."""

import numpy as np
import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.engines.driver import EngineLimits
from scheduler_adapters.engines.engine_clock import WallClock
from scheduler_adapters.engines.random_model import llama_config
from scheduler_adapters.engines.transformers_batching.in_process import (
    BatchingConfig,
    kv_blocks,
    open_driver,
)
from scheduler_adapters.policies.shortest_predicted import pars
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.validation.engine_trial import StepRecorder
from scheduler_adapters.workload.requests import make_requests


def test_a_gpu_that_cannot_hold_the_longest_request_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (1 << 28, 80 << 30))
    with pytest.raises(ConfigError, match="lower max_context"):
        kv_blocks(llama_config("7b"), "cuda", 1000, max_num_seqs=64)


@pytest.mark.parametrize("free_gib", [1, 16, 64])
def test_the_kv_cache_takes_no_more_than_its_share_of_free_memory(
    free_gib: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_bytes = free_gib << 30
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (free_bytes, 80 << 30))
    num_blocks = kv_blocks(llama_config("7b"), "cuda", 1000, max_num_seqs=64)
    # Llama-2-7B: keys and values of 32 layers, 4096 wide, 2 bytes a number, 32 tokens a block.
    assert num_blocks * 32 * (2 * 32 * 4096 * 2) <= 0.6 * free_bytes
    assert num_blocks <= 64 * 33 / 0.85 + 1


@pytest.mark.parametrize("seats", [1, 2, 64])
def test_the_simulator_serves_the_longest_request_where_the_engine_does(seats: int) -> None:
    num_blocks = kv_blocks(llama_config("tiny"), "cpu", 1000, max_num_seqs=seats)
    limits = EngineLimits(
        kv_blocks=num_blocks,
        max_num_seqs=seats,
        max_tokens=512,
        block_tokens=32,
        watermark_fraction=0.15,
    )
    instance = limits.instance(AffineLatency(base_s=0.01))
    assert not instance.cannot_hold(np.array([400]), np.array([600])).any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention": "flash"}, "attention is 'flash'"),
        ({"shape": "huge"}, "shape is 'huge'"),
    ],
)
def test_an_engine_that_cannot_be_is_refused(settings: dict[str, object], message: str) -> None:
    requests = make_requests(prompt_tokens=[4], output_tokens=[4])
    with pytest.raises(ConfigError, match=message):
        open_driver(BatchingConfig(device="cpu", **settings), requests)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_recording_holds_arrivals_tokens_and_steps() -> None:
    requests = make_requests(
        prompt_tokens=[20, 9, 30], output_tokens=[5, 9, 3], arrival_s=[0.0, 0.0, 0.3]
    )
    driver = open_driver(BatchingConfig(device="cpu", max_num_seqs=2), requests)
    assert driver.limits.max_num_seqs == 2
    with pytest.raises(ConfigError, match="clock is 'cpu'"):
        driver.clock("cpu")
    kind, clock = driver.clock(None)
    assert (kind, type(clock)) == ("wall", WallClock)
    recorder = StepRecorder()
    timeline = driver.serve(requests, clock=clock, seed=0, observers=[recorder]).timeline
    assert sum(step.prefill_tokens for step in recorder.steps) == 59
    assert sum(step.num_decodes for step in recorder.steps) == 17 - 3
    assert [len(timeline.token_s(row)) for row in range(3)] == [5, 9, 3]
    assert timeline.scheduled_s[2] >= 0.3
    assert np.isfinite(timeline.finished_s).all()
    run = driver.serve(requests, clock=clock, seed=0, policy=pars())
    assert [len(tokens) for tokens in run.token_ids] == [5, 9, 3]
