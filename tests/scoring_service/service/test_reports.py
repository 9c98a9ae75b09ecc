"""Observed lengths come back: rolling quality, log, metrics."""

from __future__ import annotations

import json
import urllib.request

import pytest

from scoring_service.client import Observed, Score, ScoringClient
from scoring_service.errors import ConfigError, InvalidPrompt
from scoring_service.server.server import ScoringServer
from scoring_service.service.config import ServerConfig
from scoring_service.service.reports import Observation, ReportBook


def seen(score: float, tokens: int, revision: str = "r1") -> Observation:
    return Observation("tiny-llm", tokens, score, revision)


def test_quality_is_of_the_served_revision_only(tiny_model):
    book = ReportBook()
    assert book.add([seen(n, n * 10) for n in range(30)], "r1") == 30
    assert book.quality({})["tiny-llm"].tau_b == pytest.approx(1)
    assert book.add([seen(n, -n, "r1") for n in range(30)], "r2") == 0
    assert book.quality({}) == {}


def test_coverage_counts_lengths_between_the_outer_quantiles(tiny_model):
    book = ReportBook()
    book.add([seen(0.0, tokens) for tokens in [100] * 15 + [5000] * 5], "r1")
    quality = book.quality(tiny_model.length_curves)["tiny-llm"]
    assert quality.coverage == pytest.approx(0.75)
    assert quality.expected_coverage == pytest.approx(0.4)


def test_few_observations_make_no_claim(tiny_model):
    book = ReportBook()
    book.add([seen(n, n) for n in range(5)], "r1")
    quality = book.quality(tiny_model.length_curves)["tiny-llm"]
    assert (quality.num_observed, quality.tau_b, quality.coverage) == (5, None, None)


def test_a_log_that_cannot_be_written_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match="report_log"):
        ReportBook(str(tmp_path / "nowhere" / "log.jsonl"))


@pytest.fixture
def server(tiny_model, tmp_path):
    config = ServerConfig(
        address="127.0.0.1:0",
        metrics_address="127.0.0.1:0",
        report_log=str(tmp_path / "reports.jsonl"),
    )
    server = ScoringServer(tiny_model, config)
    server.start()
    yield server
    server.stop()


def scrape(server) -> dict[str, float]:
    url = f"http://127.0.0.1:{server.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=60) as response:
        lines = response.read().decode().splitlines()
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in lines
        if not line.startswith("#")
    }


def test_reported_lengths_reach_the_metrics_and_the_log(server, client, tmp_path):
    with ScoringClient(server.target, timeout_s=60) as client:
        prompts = [f"{'essay ' * n}yes" for n in range(1, 31)]
        scores = client.score_batch(prompts)
        observed = [
            Observed(score, 10 * n, "tiny-llm", prompt)
            for n, (score, prompt) in enumerate(zip(scores, prompts, strict=True))
            if isinstance(score, Score)
        ]
        assert client.report(observed) == 30
        with pytest.raises(InvalidPrompt, match="observations"):
            client.report(observed * 3)
    metrics = scrape(server)
    assert metrics['scoring_live_tau_b{target_model="tiny-llm"}'] == pytest.approx(1, abs=0.05)
    assert metrics['scoring_observed_responses{target_model="tiny-llm"}'] == 30
    rows = [json.loads(line) for line in (tmp_path / "reports.jsonl").read_text().splitlines()]
    assert [row["output_tokens"] for row in rows] == [10 * n for n in range(30)]
    assert rows[0]["prompt"] == prompts[0]
    assert rows[0]["model"] == "tiny-llm"


def test_calls_stages_cache_and_model_are_in_the_metrics(server, tiny_bundle):
    with ScoringClient(server.target, timeout_s=60) as client:
        client.score("yes")
        client.score("yes")
        client.score_batch(["yes", "no"])
        with pytest.raises(InvalidPrompt):
            client.score("")
    metrics = scrape(server)
    assert metrics['scoring_calls_total{code="OK",method="Score"}'] == 2
    assert metrics['scoring_calls_total{code="INVALID_ARGUMENT",method="Score"}'] == 1
    assert metrics['scoring_stage_seconds_count{stage="infer"}'] == 3
    assert metrics["scoring_cache_hits_total"] == 2
    assert metrics["scoring_model_runs_total"] == 2
    revision = tiny_bundle.manifest.revision
    info = f'scoring_model_info{{name="tiny",precision="fp32",revision="{revision}"}}'
    assert metrics[info] == 1


def test_a_metrics_port_in_use_is_refused(tiny_model, server):
    config = ServerConfig(address="127.0.0.1:0", metrics_address=f"127.0.0.1:{server.metrics_port}")
    with pytest.raises(ConfigError, match="metrics"):
        ScoringServer(tiny_model, config)
