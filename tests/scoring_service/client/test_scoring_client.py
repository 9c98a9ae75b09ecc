"""The plain client against a server in this process, with the tiny ranker."""

import threading

import pytest

from lengthwise.errors import ConfigError, InvalidPrompt, ScoringTimeout, ServiceUnavailable
from scoring_service.client import Score, ScoringClient
from scoring_service.client.fail_open import FailOpenScorer


def test_a_batch_has_the_scores_of_its_prompts_alone_by_length(client):
    prompts = ["yes no", "poem", "a long essay", "poem " * 30]
    batch = client.score_batch(prompts)
    assert batch == [client.score(prompt) for prompt in prompts]
    assert batch[0].value < batch[1].value < batch[2].value


@pytest.mark.parametrize("prompt", [3, None, b"yes", "\ud800"])
def test_what_is_not_unicode_text_is_an_invalid_prompt(client, prompt):
    with pytest.raises(InvalidPrompt, match="a prompt is"):
        client.score(prompt)
    good, bad = client.score_batch(["yes", prompt])
    assert isinstance(good, Score)
    assert isinstance(bad, InvalidPrompt)


def test_one_string_is_no_batch_of_its_characters(client):
    with pytest.raises(InvalidPrompt, match="one string"):
        client.score_batch("Write a poem.")


def test_loopback_needs_no_proxy_and_other_hosts_name_a_variable(server, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with ScoringClient(server.target, timeout_s=60.0) as direct:
        assert direct.score("yes").value < direct.score("long essay").value
    with (
        ScoringClient("scorer.invalid:50051", timeout_s=60.0) as proxied,
        pytest.raises(ServiceUnavailable, match=r"50051 through http_proxy=http://127\.0\.0\.1:9 "),
    ):
        proxied.score("yes")


@pytest.mark.parametrize("target", ["", None, 50051])
def test_a_client_without_a_target_is_refused(target):
    for client in (ScoringClient, FailOpenScorer):
        with pytest.raises(ConfigError, match="target is"):
            client(target)


@pytest.mark.parametrize("seconds", [-1, 0, float("nan"), float("inf"), 1e9])
def test_a_client_whose_calls_could_never_be_in_time_is_refused(seconds):
    for client, name in ((ScoringClient, "timeout_s"), (FailOpenScorer, "budget_s")):
        with pytest.raises(ConfigError, match=f"{name} is"):
            client("127.0.0.1:1", **{name: seconds})


def test_the_client_splits_to_the_limits_of_the_service(client):
    prompts = ["poem " * 150] * 3 + ["yes"] * 20  # over 8 prompts and over 4,000 bytes
    scores = client.score_batch(prompts)
    assert len(scores) == 23
    assert all(isinstance(score, Score) for score in scores)


def test_a_message_beyond_the_transport_limit_is_invalid(client):
    with pytest.raises(InvalidPrompt, match="larger than max"):
        client.score("x" * 5000)


def test_a_target_model_turns_the_score_into_tokens(server):
    with ScoringClient(server.target, timeout_s=60, target_model="tiny-llm") as client:
        short, long = client.score("no"), client.score("essay essay essay")
    assert short.expected_tokens < long.expected_tokens <= 1000
    assert set(long.quantiles) == {0.5, 0.9}
    assert long.quantiles[0.5] <= long.quantiles[0.9]


def test_info_tells_the_model_and_the_limits(client, tiny_bundle):
    info = client.info()
    assert info.name == "tiny"
    assert info.revision == tiny_bundle.manifest.revision == client.score("x").revision
    assert (info.max_batch_prompts, info.max_prompt_tokens) == (8, 32)
    assert info.target_models == ("tiny-llm",)
    assert info.precision == "fp32"


def test_a_passed_deadline_is_a_scoring_timeout(server, client, monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr(server.service.model.scorer, "score", lambda prompts: gate.wait(60))
    with pytest.raises(ScoringTimeout):
        client.score("yes", timeout_s=0.1)
    gate.set()


def test_no_service_is_unavailable_with_the_command_to_start_one():
    with ScoringClient("127.0.0.1:1", timeout_s=60) as client:
        with pytest.raises(ServiceUnavailable, match="scoring_service serve"):
            client.score("yes")
        assert {type(error) for error in client.score_batch(["a", "b"])} == {ServiceUnavailable}
