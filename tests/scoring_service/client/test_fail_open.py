"""A score or None within the budget, whatever the service does."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from types import SimpleNamespace

import pytest

from lengthwise import errors
from scoring_service.client import Score, ScoringClient, fail_open
from scoring_service.client.breaker import CircuitBreaker
from scoring_service.client.fail_open import FailOpenScorer
from tests.scoring_service.waiting import wait_until


@pytest.fixture
def held(server, monkeypatch):
    """Calls to the service wait for `proceed`; `asked` holds the prompts of each."""
    held = SimpleNamespace(asked=[], calls=[], proceed=threading.Event())
    real = server.service.begin

    def slow(prompts, *rest):
        held.asked.append(list(prompts))
        held.calls.append(rest[1])
        held.proceed.wait(60)
        return real(prompts, *rest)

    monkeypatch.setattr(server.service, "begin", slow)
    yield held
    held.proceed.set()


@pytest.fixture
def scorer(server):
    with FailOpenScorer(server.target, budget_s=60, max_batch_prompts=8) as scorer:
        yield scorer


def test_concurrent_callers_share_calls(held, scorer):
    prompts = [f"essay {n}" for n in range(40)]
    with ThreadPoolExecutor(40) as pool:
        asked = [pool.submit(scorer.score, prompt) for prompt in prompts]
        wait_until(lambda: scorer._in_flight + sum(map(len, scorer._waiting.values())) >= 40)
        held.proceed.set()
        assert all(isinstance(one.result(60), Score) for one in asked)
    assert sorted(prompt for call in held.asked for prompt in call) == sorted(prompts)
    assert len(held.asked) <= 9


def test_a_bad_prompt_is_none_and_spoils_no_other(scorer):
    prompts = ["yes", "", "\ud800", "x" * 2000, "essay"] * 4
    with ThreadPoolExecutor(20) as pool:
        scores = list(pool.map(scorer.score, prompts))
    for prompt, score in zip(prompts, scores, strict=True):
        assert (score is not None) == (prompt in ("yes", "essay"))
    assert scorer.counts["invalid_prompt"] == 12
    assert scorer.score("yes") is not None


def test_no_service_is_none_and_is_soon_left_alone():
    with FailOpenScorer("127.0.0.1:1", budget_s=60) as scorer:
        assert [scorer.score("yes") for _ in range(10)] == [None] * 10
        assert (scorer.counts["breaker_open"], scorer.counts.total()) == (7, 10)


def test_a_hanging_service_costs_the_budget_and_is_left_alone(server, held):
    breaker = CircuitBreaker(open_s=3600, max_open_s=3600)
    with FailOpenScorer(server.target, budget_s=0.1, breaker=breaker) as scorer:
        wait_until(lambda: scorer.score("yes") or scorer.counts["breaker_open"])
        assert scorer.counts["timeout"] >= 3
        assert not scorer.counts["scored"]
    with FailOpenScorer(server.target, budget_s=0.1) as scorer:
        assert asyncio.run(scorer.ask_async("yes")).score is None


def test_a_service_is_silent_while_it_answers_nobody(monkeypatch):
    monkeypatch.setattr(fail_open, "SILENT_S", 60.0)
    with FailOpenScorer("127.0.0.1:1", breaker=CircuitBreaker(max_failures=2)) as scorer:
        now_s = time.monotonic()
        for asked_s, answered_s, is_left_alone in (
            (now_s - 100, now_s - 1, False),  # asked long ago, and somebody was answered since
            (now_s - 1, now_s - 100, False),  # idle since its last answer, and asked just now
            (now_s - 90, now_s - 100, True),
        ):
            scorer._called_s, scorer._answered_s = asked_s, answered_s
            for _ in range(2):
                scorer.out_of_time()
            assert scorer._breaker.allow() != is_left_alone


@pytest.mark.parametrize(
    ("fault", "opens"),
    [
        (errors.InvalidPrompt("not UTF-8"), False),
        (errors.ScoringTimeout("a long one"), False),
        (errors.ScoringError("INTERNAL: the service failed; its log says how"), False),
        ([errors.ScoringTimeout("refused alone")], False),
        (errors.ServiceUnavailable("gone"), True),
        (errors.AccessDenied("no token"), True),
        (errors.ServiceOverloaded("full"), True),
    ],
)
def test_what_is_wrong_with_a_prompt_does_not_open_the_breaker(fault, opens):
    with FailOpenScorer("127.0.0.1:1", breaker=CircuitBreaker(max_failures=2)) as scorer:
        scorer._called_s = time.monotonic()
        scorer._report(fault)
        assert scorer._breaker.allow()
        for _ in range(20):
            scorer._report(fault)
        assert scorer._breaker.allow() != opens


def test_a_try_that_tells_nothing_leaves_room_for_another(monkeypatch):
    monkeypatch.setattr(fail_open, "SILENT_S", 60.0)
    with FailOpenScorer("127.0.0.1:1", breaker=CircuitBreaker(open_s=1e-9)) as scorer:
        scorer._called_s = time.monotonic()
        scorer._report(errors.ServiceOverloaded("busy", retry_after_s=1e-9))
        for _ in range(3):
            assert scorer._breaker.allow()
            scorer._report(errors.ScoringTimeout("not in time"))


def test_clients_take_turns_and_none_has_all_the_calls(server, held):
    """However many prompts one client sends, another one has a call of its own."""

    async def main():
        with FailOpenScorer(
            server.target, budget_s=60, max_in_flight=1, max_batch_prompts=4
        ) as scorer:
            flood = [asyncio.create_task(scorer.ask_async(f"a {n}", "a")) for n in range(200)]
            await asyncio.sleep(0)
            assert scorer._calls == {"a": 1}
            honest = [asyncio.create_task(scorer.ask_async(f"b {n}", "b")) for n in range(2)]
            await asyncio.sleep(0)
            assert scorer._calls == {"a": 1, "b": 1}
            held.proceed.set()
            answers = await asyncio.gather(*honest, *flood)
            assert {one.outcome for one in answers} == {"scored"}
            assert not scorer._calls
            assert not scorer._waiting

    asyncio.run(main())
    first_b1 = next(n for n, prompts in enumerate(held.asked) if "b 1" in prompts)
    assert first_b1 < len(held.asked) / 2  # not behind the flood
    assert max(map(len, held.asked)) <= 4
    for prompts, call in zip(held.asked, held.calls, strict=True):  # Each prompt is its client's.
        owners = call.owners or [call.client] * len(prompts)
        assert [owner.name for owner in owners] == [
            blake2b(prompt[0].encode(), digest_size=8).hexdigest() for prompt in prompts
        ]


def test_it_recovers_when_the_service_is_back(serve):
    server = serve(drain_grace_s=0)
    breaker = CircuitBreaker(open_s=0.1, max_open_s=0.2)
    with FailOpenScorer(server.target, budget_s=60, breaker=breaker) as scorer:
        assert scorer.score("yes") is not None
        server.stop()
        for _ in range(5):
            assert scorer.score("no") is None
        serve(address=server.target)
        wait_until(lambda: scorer.score("poem"))
        assert scorer.score("essay") is not None


def test_a_cancelled_prompt_is_not_sent_and_blames_nobody(server, held):
    async def main():
        breaker = CircuitBreaker(max_failures=1)
        with FailOpenScorer(server.target, budget_s=60, breaker=breaker, max_in_flight=1) as scorer:
            first = asyncio.create_task(scorer.ask_async("yes"))
            await asyncio.to_thread(wait_until, lambda: held.asked)
            behind = [asyncio.create_task(scorer.ask_async(f"no {n}")) for n in range(5)]
            last = asyncio.create_task(scorer.ask_async("essay"))
            await asyncio.sleep(0)
            for one in behind:
                one.cancel()
            await asyncio.gather(*behind, return_exceptions=True)
            held.proceed.set()
            assert [(await one).outcome for one in (first, last)] == ["scored", "scored"]
            assert scorer.counts == {"scored": 2, "cancelled": 5}

    asyncio.run(main())
    assert held.asked == [["yes"], ["essay"]]


def test_a_closed_client_is_unavailable_not_a_crash(server):
    scorer = FailOpenScorer(server.target, budget_s=60)
    scorer.close()
    assert scorer.score("yes") is None
    client = ScoringClient(server.target, timeout_s=60)
    client.close()
    with pytest.raises(errors.ServiceUnavailable):
        client.score("yes")
