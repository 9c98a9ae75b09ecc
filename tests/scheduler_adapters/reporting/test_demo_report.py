"""The demo's page: its lead, its tables, and the figure beside it."""

import numpy as np
import pandas as pd
import pytest

from lengthwise.bundle import Manifest
from scheduler_adapters.reporting.demo_report import Bursts, write_demo_report
from scheduler_adapters.timeline.timeline import Timeline, timeline_from_token_times
from scheduler_adapters.workload.requests import make_requests

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
    text = write_demo_report(tmp_path, MANIFEST, simulated, None).read_text()
    assert "trained on 77 prompts of two-chats (tau_b 0.500 on held-out prompts)" in text
    assert "of a burst 3.0-fold." in text
    assert "<td>3.00x</td>" in text
    assert text.count("<svg") == 3  # who waits under FCFS and PARS, latency
    assert "make play" in text


def test_the_figure_beside_the_page_has_a_panel_per_engine(simulated, tmp_path):
    write_demo_report(tmp_path, MANIFEST, simulated, simulated)
    table = pd.read_csv(tmp_path / "latency.csv")
    assert set(table["panel"]) == {"simulator", "vLLM"}
    pars = table[(table["panel"] == "vLLM") & (table["policy"] == "pars")]
    np.testing.assert_allclose(pars["value"], [1.0, 2.0, 3.0])
    assert (tmp_path / "latency.svg").read_text().count("<svg") == 3  # two in one
