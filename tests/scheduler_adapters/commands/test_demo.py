"""The demo end to end on a toy bundle: everything real but the ranker's skill and vLLM."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lengthwise.bundle import BANNER, Manifest, ModelBundle
from lengthwise.errors import DataError
from scheduler_adapters.__main__ import main
from scheduler_adapters.commands.demo import (
    SMALL,
    Bursts,
    DemoConfig,
    serve_bursts,
    write_demo_report,
)
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
    (trained / "small").mkdir()
    (trained / "small/bundle").symlink_to(trained / "bundle", target_is_directory=True)
    engines = served(trained)
    assert engines.keys() == {"simulator"}
    means = means_of(engines["simulator"])
    assert means["oracle"] < means["fcfs"]
    assert means["oracle"] <= means["pars"] == means[SMALL]


def test_without_vllm_a_line_says_only_the_simulator_is_shown(trained, monkeypatch, caplog):
    monkeypatch.setattr(vllm_driver, "find_spec", lambda name: None)
    engines = served(trained, 20)
    assert engines["simulator"].timelines.keys() == {"fcfs", "pars", "oracle"}
    assert "vLLM is not installed" in caplog.text
    assert "the demo leaves the real engine out" in caplog.text


def test_invented_data_puts_a_banner_on_the_page_and_the_table(trained, capsys, monkeypatch):
    monkeypatch.setattr(Manifest, "banner", BANNER)
    assert main(["demo", "--trained", str(trained), "--num-engine-requests=0"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(BANNER)
    assert "ranker: tau_b undefined (TF-IDF + ridge undefined)" in printed
    page = (trained / "report.html").read_text()
    assert f'<p class="banner">{BANNER}</p>' in page
    assert "<svg" in page


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
def test_all_schedulers_serve_the_same_requests_in_one_engine(trained):
    bursts = served(trained, 41)["vLLM"]
    assert len(bursts.timelines["pars"].requests) == 41
    means = means_of(bursts)
    assert 0 < means["oracle"] < means["fcfs"]
    assert 0 < bursts.summaries["pars"].e2e_s.mean < 100
    assert "41 of the same requests in 4 bursts" in bursts.conditions


def test_a_folder_without_a_bundle_is_one_clear_line(tmp_path, capsys):
    assert main(["demo", "--trained", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "python -m training fit" in error
    assert list(tmp_path.iterdir()) == []


def test_held_out_prompts_must_be_there(trained):
    (trained / "test.parquet").unlink()
    with pytest.raises(DataError, match=r"test\.parquet"):
        served(trained)


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
    text = write_demo_report(tmp_path, MANIFEST, {"simulator": simulated}).read_text()
    assert "trained on 77 prompts of two-chats (tau_b 0.500 on held-out prompts)" in text
    assert "of a burst 3.0-fold." in text
    assert "<td>3.00x</td>" in text
    assert text.count("<svg") == 3  # who waits under FCFS and PARS, latency
    assert "serve-vllm MODEL --bundle mlruns/demo/bundle" in text


def test_the_figure_beside_the_page_has_a_panel_per_engine(simulated, tmp_path):
    write_demo_report(tmp_path, MANIFEST, {"simulator": simulated, "vLLM": simulated})
    table = pd.read_csv(tmp_path / "latency.csv")
    assert set(table["panel"]) == {"simulator", "vLLM"}
    pars = table[(table["panel"] == "vLLM") & (table["policy"] == "pars")]
    np.testing.assert_allclose(pars["value"], [1.0, 2.0, 3.0])
    assert (tmp_path / "latency.svg").read_text().count("<svg") == 3  # two in one
