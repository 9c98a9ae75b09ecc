"""The service without a wire: limits, places, errors per prompt."""

import time
from queue import SimpleQueue

import pytest

from lengthwise.errors import InvalidPrompt, ServiceOverloaded
from scoring_service.service.batching import Call
from scoring_service.service.call_results import CallResults, Scored
from scoring_service.service.config import ServerConfig
from scoring_service.service.scoring import ScoringService
from scoring_service.shares import NOBODY


@pytest.fixture
def service(tiny_model):
    config = ServerConfig(max_batch_prompts=3, max_prompt_bytes=10, max_concurrent_calls=1)
    return ScoringService(tiny_model, config)


def ask(service, *prompts, target_model=""):
    answers = SimpleQueue()
    service.begin(prompts, target_model, Call(time.monotonic() + 600), answers.put)
    return answers.get(timeout=600)


def test_a_batch_has_one_to_as_many_prompts_as_are_allowed(service):
    assert len(ask(service, "a", "b", "c").items) == 3
    for prompts in ([], ["a"] * 4):
        with pytest.raises(InvalidPrompt, match=f"has {len(prompts)} prompts; send 1 to 3"):
            ask(service, *prompts)


def test_a_prompt_is_measured_in_bytes_and_refused_alone(service):
    fits, long, encoded = ask(service, "x" * 10, "x" * 11, "\u00e9" * 6).items
    assert isinstance(fits, Scored)
    assert isinstance(long, InvalidPrompt)
    assert "12 bytes" in str(encoded)
    empty, first, again = ask(service, "", "yes", "yes").items
    assert "empty" in str(empty)
    assert first == again


def test_what_is_kept_of_a_prompt_is_what_is_read(tiny_model, monkeypatch):
    service = ScoringService(tiny_model, ServerConfig())
    kept = []
    monkeypatch.setattr(
        "scoring_service.service.scoring.CallResults",
        lambda *args: kept.extend(args[3].values()) or CallResults(*args),
    )
    middle, end = "a " * 500_000, "yes " * 4000
    one, other = ask(service, f"{end}{middle}{end}", f"{end}b{middle}{end}").items
    assert one == other
    assert one.truncated
    limit = tiny_model.tokenizer.max_chars
    assert [len(prompt) for prompt in kept] == [limit + 1]
    whole, more = ask(service, "\u0301" * limit, "\u0301" * (limit + 2)).items
    assert (whole.truncated, more.truncated) == (False, True)


def test_a_call_beyond_the_places_is_refused_and_places_return(service):
    place = service._calls.enter(NOBODY, None)
    with pytest.raises(ServiceOverloaded, match="1 calls") as caught:
        ask(service, "yes")
    assert caught.value.retry_after_s == 0.001
    service._calls.leave(place)
    for _ in range(3):
        assert isinstance(ask(service, "yes").items[0], Scored)
    assert service._calls.all.num == 0


def test_an_unknown_target_model_is_refused_with_the_known_ones(service):
    assert ask(service, "yes", target_model="tiny-llm").items[0].length is not None
    assert ask(service, "yes").items[0].length is None
    with pytest.raises(InvalidPrompt, match="has tiny-llm"):
        ask(service, "yes", target_model="other")
