"""The demo end to end on a toy bundle: everything real but the ranker's skill and vLLM."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lengthwise.bundle import Manifest, ModelBundle
from scheduler_adapters.__main__ import main
from scheduler_adapters.commands import demo
from scheduler_adapters.commands.demo import (
    QUIET,
    SMALL,
    Bursts,
    DemoConfig,
    serve_bursts,
    write_demo_report,
)
from scheduler_adapters.commands.play import write_model
from scheduler_adapters.engines.vllm_v1 import in_process as vllm_driver
from scheduler_adapters.timeline.timeline import Timeline, timeline_from_token_times
from scheduler_adapters.workload.requests import make_requests

NUM_PROMPTS = 150


@pytest.fixture
def trained(tiny_bundle, tmp_path):
    """A training run: a bundle, and held-out prompts whose lengths vary."""
    (tmp_path / "bundle").symlink_to(tiny_bundle.path, target_is_directory=True)
    lengths = np.random.default_rng(0).geometric(1 / 60, NUM_PROMPTS)
    prompts = [f"hello {i} " * (1 + i % 5) for i in range(NUM_PROMPTS)]
    frame = pd.DataFrame({"prompt": prompts, "output_tokens": lengths})
    frame.to_parquet(tmp_path / "test.parquet")
    return tmp_path


def served(trained: Path, num_engine_requests: int = 0) -> dict[str, Bursts]:
    config = DemoConfig(trained=trained, num_engine_requests=num_engine_requests)
    return serve_bursts(config, ModelBundle.load(trained / "bundle"))


def means_of(bursts: Bursts) -> dict[str, float]:
    return {name: one.normalized_latency_s.mean for name, one in bursts.summaries.items()}


def test_the_oracle_beats_fcfs_and_a_small_ranker_has_a_row(trained):
    (trained / "small").symlink_to(trained, target_is_directory=True)
    engines = served(trained)
    assert engines.keys() == {"simulator", QUIET}
    means, quiet = means_of(engines["simulator"]), means_of(engines[QUIET])
    assert quiet["pars"] == pytest.approx(quiet["fcfs"], rel=0.05)
    assert means["oracle"] < means["fcfs"]
    assert means["oracle"] <= means["pars"] == means[SMALL]


def test_without_vllm_a_line_says_only_the_simulator_is_shown(trained, monkeypatch, caplog):
    monkeypatch.setattr(vllm_driver, "find_spec", lambda name: None)
    monkeypatch.setattr(demo, "find_chat_model", lambda: None)
    engines = served(trained, 20)
    assert engines["simulator"].timelines.keys() == {"fcfs", "pars", "oracle"}
    assert "leaves the real engine out" in caplog.text


def test_the_command_prints_the_ranker_and_writes_the_page(trained, capsys):
    assert main(["demo", "--trained", str(trained), "--num-engine-requests=0"]) == 0
    assert "ranker: tau_b undefined (TF-IDF + ridge undefined)" in capsys.readouterr().out
    assert "<svg" in (trained / "report.html").read_text()


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
def test_a_chat_model_answers_under_each_scheduler(trained, tmp_path, monkeypatch):
    model = write_model(tmp_path / "model", ["hello 1 2 3"] * 20)
    monkeypatch.setattr(demo, "find_chat_model", lambda: model)
    monkeypatch.setattr(demo, "_LIMIT", 12)
    engines = served(trained, 41)
    burst, poisson = engines["vLLM"], engines["vLLM, Poisson"]
    # No oracle: the recorded lengths are of another model.
    assert burst.timelines.keys() == poisson.timelines.keys() == {"fcfs", "pars"}
    np.testing.assert_array_equal(*(t.requests.output_tokens for t in burst.timelines.values()))
    assert 0 < burst.timelines["pars"].requests.output_tokens.max() <= 12
    assert (np.diff(poisson.timelines["pars"].requests.arrival_s) > 0).sum() == 11
    assert "Three answers" in write_demo_report(trained, MANIFEST, engines).read_text()


REQUESTS = make_requests(prompt_tokens=[4] * 3, output_tokens=[2] * 3, scores=[1.0, 2.0, 3.0])
MANIFEST = Manifest(
    name="tiny",
    label="output_tokens",
    label_tokenizer="none",
    max_prompt_tokens=32,
    dataset={"id": "two-chats", "train_prompts": 77},
    metrics={"tau_b": 0.5},
)


def burst_of(*ends_s: float) -> Timeline:
    return timeline_from_token_times(REQUESTS, [[end_s / 2, end_s] for end_s in ends_s])


@pytest.fixture
def simulated():
    """FCFS takes three times as long as PARS."""
    timelines = {"fcfs": burst_of(3.0, 6.0, 9.0), "pars": burst_of(1.0, 2.0, 3.0)}
    return Bursts(timelines=timelines, conditions="three requests")


def test_the_lead_says_how_many_times_lower(simulated, tmp_path):
    text = write_demo_report(
        tmp_path, MANIFEST, {"simulator": simulated, QUIET: simulated}
    ).read_text()
    assert "trained on 77 prompts of two-chats (tau_b 0.500 on held-out prompts)" in text
    assert "of a burst 3.0-fold." in text
    assert "<td>3.00x</td>" in text
    assert text.count("<svg") == 2  # a panel per load
