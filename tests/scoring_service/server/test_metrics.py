"""Counts of calls and times of stages, none lost."""

import pytest

from lengthwise.errors import ServiceOverloaded
from scoring_service.server.metrics import Metrics
from scoring_service.service.call_results import Scored
from scoring_service.service.config import ServerConfig
from scoring_service.service.scoring import CallAnswer, ScoringService, Timings


@pytest.fixture
def metrics(tiny_model):
    return Metrics(ScoringService(tiny_model, ServerConfig()))


def sample(metrics, metric, **labels):
    return metrics.registry.get_sample_value(metric, labels) or 0.0


def test_an_answer_is_seen_by_stage_and_a_refusal_passes_none(metrics):
    timings = Timings(tokenize_s=0.1, queue_s=0.2, infer_s=0.3, total_s=0.6)
    refusal = ServiceOverloaded("full")
    metrics.observe(CallAnswer("r", [Scored(1.0, 7, False, None), refusal], timings))
    metrics.observe(CallAnswer("r", [refusal], timings))
    for stage, seconds in [("tokenize", 0.1), ("queue", 0.2), ("infer", 0.3), ("total", 0.6)]:
        assert sample(metrics, "scoring_stage_seconds_sum", stage=stage) == pytest.approx(seconds)
        assert sample(metrics, "scoring_stage_seconds_count", stage=stage) == 1
    assert sample(metrics, "scoring_prompt_tokens_sum") == 7


def test_the_model_served_is_named_and_reloads_count_by_outcome(metrics, tiny_model):
    labels = {"name": "tiny", "revision": tiny_model.revision, "precision": "fp32"}
    assert sample(metrics, "scoring_model_info", **labels) == 1
    assert sample(metrics, "scoring_slowdown_ratio") == 1
    metrics.count_reload("refused")
    assert sample(metrics, "scoring_reloads_total", outcome="refused") == 1
