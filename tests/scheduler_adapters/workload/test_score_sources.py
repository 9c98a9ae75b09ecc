"""Scores: a requested tau-b, quantiles of the length, and no failure that stops a request."""

import json
import logging
import shutil
import subprocess
import sys

import numpy as np
import pytest
from tokenizers import Tokenizer

from lengthwise.bundle import TOKENIZER, sha256_of
from lengthwise.errors import BundleError, ConfigError, ScoringError
from scheduler_adapters.policy import load_policy
from scheduler_adapters.workload.mixes import draw_lengths
from scheduler_adapters.workload.requests import make_requests
from scheduler_adapters.workload.score_sources import (
    ServiceScores,
    achieved_tau_b,
    open_prompt_scorer,
    synthetic_scores,
    with_lengths,
)
from scheduler_adapters.workload.traces import read_trace


def requests_of(count: int, *, seed: int = 0, median: float = 160.0):
    random = np.random.default_rng(seed)
    output_tokens = np.clip(random.lognormal(np.log(median), 1.0, count), 1, 4096).astype(int)
    return make_requests(prompt_tokens=np.ones(count), output_tokens=output_tokens)


@pytest.mark.parametrize("tau_b", [0.0, 0.09, 0.3, 0.5, 0.61, 0.75, 0.96, 1.0, -0.5])
@pytest.mark.parametrize("median", [20.0, 1100.0])
def test_synthetic_scores_have_the_tau_b_that_was_asked_for(tau_b, median):
    requests = requests_of(2_000, median=median)
    for seed in range(3):
        scores = synthetic_scores(requests.output_tokens, tau_b=tau_b, seed=seed)
        assert achieved_tau_b(scores, requests.output_tokens) == pytest.approx(tau_b, abs=0.01)


@pytest.mark.parametrize("count", [1, 5])
def test_equal_lengths_have_scores_though_they_have_no_order(count):
    requests = make_requests(prompt_tokens=np.ones(count), output_tokens=np.full(count, 7))
    assert np.isfinite(synthetic_scores(requests.output_tokens, tau_b=0.6)).sum() == count


def test_synthetic_scores_know_no_prompt_lengths_of_their_seed():
    requests = draw_lengths("chat", 4_000, seed=0)
    scores = synthetic_scores(requests.output_tokens, tau_b=0.5, seed=0)
    assert abs(achieved_tau_b(scores, requests.prompt_tokens)) < 0.03


def test_an_absent_service_costs_the_score_and_not_the_request(caplog):
    source = ServiceScores("127.0.0.1:1", timeout_s=0.2)
    with caplog.at_level(logging.WARNING):
        assert np.isnan(source.score_prompts(["a", "b"]).values).all()
    said = [record for record in caplog.records if "by the median" in record.message]
    assert len(said) == 1


@pytest.fixture
def trace_with_prompts(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"prompt": "a long essay", "output_tokens": 900, "arrival_s": 2.0}\n'
        '{"prompt": "yes", "output_tokens": 2, "arrival_s": 0.0}\n'
        '{"prompt": "a poem", "output_tokens": 90, "arrival_s": 1.0}\n'
    )
    return path


def test_a_bundle_scores_a_traces_prompts_and_counts_tokens(tiny_bundle, trace_with_prompts):
    scorer = open_prompt_scorer(f"bundle:{tiny_bundle.path}")
    requests = read_trace(trace_with_prompts, scorer=scorer)
    assert requests.output_tokens.tolist() == [2, 90, 900]  # in order of arrival
    assert (np.diff(requests.score) > 0).all()
    assert (requests.prompt_tokens > 0).all()


def test_a_bundle_counts_the_tokens_it_does_not_read(tiny_bundle):
    scorer = open_prompt_scorer(f"bundle:{tiny_bundle.path}")
    (tokens,) = scorer.score_prompts(["long " * 200]).prompt_tokens
    assert 200 <= tokens <= 202
    assert tiny_bundle.manifest.max_prompt_tokens < 200


def test_padding_that_a_tokenizer_asks_for_is_not_counted(tiny_bundle, tmp_path):
    folder = tmp_path / "padding"
    shutil.copytree(tiny_bundle.path, folder)
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    tokenizer.enable_padding(length=50)
    tokenizer.save(str(folder / TOKENIZER))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][TOKENIZER] = sha256_of(folder / TOKENIZER)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    scores = open_prompt_scorer(f"bundle:{folder}").score_prompts(["yes", "yes no yes"])
    assert np.diff(scores.prompt_tokens).tolist() == [2]


def test_prompts_without_a_score_are_counted_and_served(tiny_bundle, tmp_path, caplog):
    path = tmp_path / "trace.csv"
    path.write_text("prompt,prompt_tokens,output_tokens\nyes,3,4\n,3,4\nlong,3,4\n")
    with caplog.at_level(logging.WARNING):
        requests = read_trace(path, scorer=open_prompt_scorer(f"bundle:{tiny_bundle.path}"))
    assert np.isnan(requests.score).tolist() == [False, True, False]
    assert "1 of 3 prompts have no score" in caplog.text


def test_a_ranker_that_scores_nothing_ends_the_experiment(trace_with_prompts):
    with pytest.raises(ScoringError, match="not one of the 3 prompts"):
        read_trace(trace_with_prompts, scorer=ServiceScores("127.0.0.1:1", timeout_s=0.2))


def test_what_is_no_ranker_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="use bundle:PATH or service:HOST:PORT"):
        open_prompt_scorer("bundle:")
    with pytest.raises(BundleError):
        open_prompt_scorer(f"bundle:{tmp_path}")


def test_a_scheduler_that_asks_a_service_loads_no_pandas():
    code = (
        "import sys, scheduler_adapters.workload.score_sources; sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_quantiles_cover_lengths_and_only_where_they_are_read():
    requests = requests_of(2000).with_scores(0.0)
    scores = synthetic_scores(requests.output_tokens, tau_b=0.6)
    requests = requests.with_scores(np.where(np.arange(2000) % 10 == 0, np.nan, scores))
    requests.score_delay_s[1] = 0.5
    assert not any(with_lengths(requests, load_policy("pars")).quantiles)
    srpt = load_policy("srpt")
    found = with_lengths(requests, srpt).quantiles
    assert [bool(one) for one in found[:12]] == [False, False, *[True] * 8, False, True]
    known = [row for row in range(2000) if found[row]]
    medians = np.array([dict(found[row])[0.5] for row in known])
    assert np.mean(requests.output_tokens[known] <= medians) == pytest.approx(0.5, abs=0.03)
    assert achieved_tau_b(medians, requests.output_tokens[known]) > 0.55
    true = with_lengths(requests.with_scores(requests.output_tokens), srpt)
    assert {tokens for _, tokens in true.quantiles[5]} == {true.output_tokens[5]}
