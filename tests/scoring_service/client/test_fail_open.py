"""A score or None within the budget, whatever the service does."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoring_service.client import Score, ScoringClient
from scoring_service.client.async_client import AsyncScoringClient
from scoring_service.client.breaker import CircuitBreaker
from scoring_service.client.fail_open import FailOpenScorer
from scoring_service.errors import InvalidPrompt, ServiceUnavailable
from scoring_service.server.server import ScoringServer
from scoring_service.service.config import ServerConfig

SLACK_S = 0.15
"""What a loaded test machine may add to a budget."""


@pytest.fixture
def scorer(server):
    with FailOpenScorer(server.target, budget_s=60, max_batch_prompts=8) as scorer:
        yield scorer


def timed(scorer: FailOpenScorer, prompt: str) -> tuple[Score | None, float]:
    started_s = time.monotonic()
    return scorer.score(prompt), time.monotonic() - started_s


def test_it_gives_the_scores_that_the_plain_client_gives(scorer, client):
    for prompt in ("yes", "long essay"):
        assert scorer.score(prompt) == client.score(prompt)


def test_concurrent_callers_share_calls(server, scorer, monkeypatch):
    sizes = []
    real = server.service.score_batch

    def counting(prompts, *rest):
        sizes.append(len(prompts))
        time.sleep(0.05)
        return real(prompts, *rest)

    monkeypatch.setattr(server.service, "score_batch", counting)
    prompts = [f"essay {n}" for n in range(40)]
    with ThreadPoolExecutor(40) as pool:
        scores = list(pool.map(scorer.score, prompts))
    assert all(isinstance(score, Score) for score in scores)
    assert sum(sizes) == 40
    assert len(sizes) < 20


def test_a_bad_prompt_is_none_and_spoils_no_other(scorer):
    prompts = ["yes", "", "\ud800", "x" * 2000, "essay"] * 4
    with ThreadPoolExecutor(20) as pool:
        scores = list(pool.map(scorer.score, prompts))
    for prompt, score in zip(prompts, scores, strict=True):
        assert (score is not None) == (prompt in ("yes", "essay"))
    assert scorer.counts["invalid_prompt"] == 12
    assert scorer.score("yes") is not None


def test_no_service_is_none_within_the_budget():
    with FailOpenScorer("127.0.0.1:1", budget_s=0.1) as scorer:
        for _ in range(10):
            score, took_s = timed(scorer, "yes")
            assert score is None
            assert took_s < 0.1 + SLACK_S
        assert scorer.counts["breaker_open"] > 0


def test_a_hanging_service_is_none_within_the_budget_and_is_soon_left_alone(server, monkeypatch):
    proceed = threading.Event()
    monkeypatch.setattr(server.service, "score_batch", lambda *_: proceed.wait(60))
    with FailOpenScorer(server.target, budget_s=0.1) as scorer:
        took_s = [timed(scorer, "yes")[1] for _ in range(8)]
    proceed.set()
    assert max(took_s) < 0.1 + SLACK_S
    assert min(took_s) < 0.02
    assert scorer.counts["breaker_open"] > 0


def test_it_recovers_when_the_service_is_back(tiny_model):
    server = ScoringServer(tiny_model, ServerConfig(address="127.0.0.1:0", drain_grace_s=0))
    server.start()
    breaker = CircuitBreaker(open_s=0.1, max_open_s=0.2)
    with FailOpenScorer(server.target, budget_s=0.3, breaker=breaker) as scorer:
        assert scorer.score("yes") is not None
        server.stop()
        for _ in range(5):
            assert scorer.score("no") is None
        again = ScoringServer(tiny_model, ServerConfig(address=server.target))
        again.start()
        deadline_s = time.monotonic() + 60
        while scorer.score("poem") is None:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        assert scorer.score("essay") is not None
        again.stop()


def test_the_event_loop_is_not_blocked(server, scorer):
    async def main():
        return await asyncio.gather(*(scorer.score_async(f"poem {n}") for n in range(30)))

    assert all(isinstance(score, Score) for score in asyncio.run(main()))


def test_asyncio_callers_get_none_within_the_budget():
    async def main():
        with FailOpenScorer("127.0.0.1:1", budget_s=0.1) as scorer:
            return await asyncio.gather(*(scorer.score_async("x") for _ in range(5)))

    started_s = time.monotonic()
    assert asyncio.run(main()) == [None] * 5
    assert time.monotonic() - started_s < 0.1 + 2 * SLACK_S


def test_the_asyncio_client_equals_the_plain_one(server, client):
    prompts = ["yes", "", "long essay"] * 5

    async def main():
        async with AsyncScoringClient(server.target, timeout_s=60) as asynchronous:
            with pytest.raises(InvalidPrompt):
                await asynchronous.score("")
            return await asynchronous.score_batch(prompts), await asynchronous.score("yes")

    batch, one = asyncio.run(main())
    assert one == client.score("yes")
    for ours, theirs in zip(batch, client.score_batch(prompts), strict=True):
        assert type(ours) is type(theirs)
        assert isinstance(ours, InvalidPrompt) or ours == theirs


def test_the_asyncio_client_says_unavailable():
    async def main():
        async with AsyncScoringClient("127.0.0.1:1", timeout_s=60) as client:
            assert {type(e) for e in await client.score_batch(["a", "b"])} == {ServiceUnavailable}

    asyncio.run(main())


def test_a_closed_client_is_unavailable_not_a_crash(server):
    scorer = FailOpenScorer(server.target, budget_s=0.2)
    scorer.close()
    assert scorer.score("yes") is None
    client = ScoringClient(server.target, timeout_s=60)
    client.close()
    with pytest.raises(ServiceUnavailable):
        client.score("yes")
    with pytest.raises(ServiceUnavailable):
        next(client.score_stream(["yes"]))

    async def main():
        asynchronous = AsyncScoringClient(server.target, timeout_s=60)
        await asynchronous.close()
        with pytest.raises(ServiceUnavailable):
            await asynchronous.score("yes")

    asyncio.run(main())


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_the_breaker_opens_after_failures_and_lets_one_try():
    clock = Clock()
    breaker = CircuitBreaker(max_failures=3, open_s=1.0, clock=clock)
    for _ in range(3):
        assert breaker.allow()
        breaker.failure()
    assert not breaker.allow()
    clock.now_s = 1.3
    assert [breaker.allow() for _ in range(3)] == [True, False, False]
    breaker.failure()
    clock.now_s = 2.6
    assert not breaker.allow()  # twice as long as before
    clock.now_s = 4.0
    assert breaker.allow()
    breaker.success()
    assert all(breaker.allow() for _ in range(3))


def test_the_breaker_honours_a_pause():
    clock = Clock()
    breaker = CircuitBreaker(clock=clock)
    breaker.pause(2.0)
    assert not breaker.allow()
    clock.now_s = 2.5
    assert breaker.allow()


@given(st.lists(st.sampled_from(["allow", "success", "failure", "pause", "wait"]), max_size=60))
def test_the_breaker_always_lets_someone_try_again(events):
    clock = Clock()
    breaker = CircuitBreaker(max_open_s=4.0, clock=clock)
    for event in events:
        if event == "wait":
            clock.now_s += 1
        elif event == "pause":
            breaker.pause(100.0)
        elif event == "allow":
            if breaker.allow():
                breaker.failure()
        else:
            getattr(breaker, event)()
    clock.now_s += 5
    assert breaker.allow()
