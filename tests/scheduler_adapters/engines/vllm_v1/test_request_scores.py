"""Scores within their deadline, after it, beyond a budget, and of no service."""

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lengthwise.tables.prompt_text import MAX_CHARACTERS
from scheduler_adapters.engines.score_channel import LateScoring
from scheduler_adapters.engines.user_classes import UserClasses
from scheduler_adapters.engines.vllm_v1 import client_bodies
from scheduler_adapters.engines.vllm_v1.client_bodies import MOST_PROMPTS
from scheduler_adapters.engines.vllm_v1.request_scores import UNSCORABLE
from scheduler_adapters.policy import load_policy
from scheduler_adapters.simulator.instance import Instance
from scheduler_adapters.simulator.latency.models import AffineLatency
from scheduler_adapters.simulator.simulate import simulate
from scheduler_adapters.workload.requests import make_requests
from scoring_service.client import fail_open
from scoring_service.client.breaker import CircuitBreaker
from scoring_service.client.fail_open import Answer, FailOpenScorer
from scoring_service.ranker.model import RankerModel
from scoring_service.server.server import ScoringServer
from scoring_service.service.config import ServerConfig
from tests.scheduler_adapters.engines.vllm_v1.middleware_bench import (
    CLASSES,
    Bench,
    FakeScorer,
    key,
)

NUM_HONEST, NUM_FORGING = 150, 50


def honest_p50_s(within_s: float, forge: Mapping[str, Any], **settings: Any) -> float:
    """Median latency of honest requests beside clients with long answers that send `forge`."""
    dice = np.random.default_rng(0)
    tokens = np.append(dice.integers(5, 60, NUM_HONEST), dice.integers(150, 200, NUM_FORGING))
    bench = Bench(FakeScorer(), **settings)
    scores = []
    for row, count in enumerate(tokens):
        own = {} if row < NUM_HONEST else forge
        reached = bench.hints({"prompt": "x" * int(count)} | own)
        scores.append(float(reached.get("lengthwise_score", np.nan)))
    requests = make_requests(
        prompt_tokens=np.full(len(tokens), 20),
        output_tokens=tokens,
        arrival_s=dice.uniform(0, within_s, len(tokens)),
        scores=scores,
        user_class=["honest"] * NUM_HONEST + ["forging"] * NUM_FORGING,
    )
    instance = Instance(
        latency=AffineLatency(base_s=0.02, per_token_s=1e-4), kv_blocks=2000, max_num_seqs=4
    )
    timeline = simulate(requests, load_policy("pars-paper"), instance)
    honest = timeline.requests.user_class == "honest"
    return float(np.median((timeline.finished_s - timeline.requests.arrival_s)[honest]))


@pytest.mark.parametrize("within_s", [75.0, 10.0])
def test_forged_scores_cost_honest_clients_nothing(within_s):
    """At nine tenths of what the engine can, and far beyond that."""
    alone_s = honest_p50_s(within_s, {})
    forged: dict[str, Any] = {"vllm_xargs": {"lengthwise_score": -1e9}, "priority": -9}
    ratios = {
        name: honest_p50_s(within_s, forge, **settings) / alone_s
        for name, forge, settings in (
            ("forged", forged, {}),
            ("forged, and all are believed", forged, {"client_hints": True}),
            ("text kept back", {"prompt": [1, 2]}, {}),
            ("text kept back, to the median", {"prompt": [1, 2]}, {"unscored_last": False}),
        )
    }
    print(f"{NUM_HONEST + NUM_FORGING} requests in {within_s:g} s:", ratios)
    assert ratios["forged"] == 1
    assert ratios["forged, and all are believed"] > 1.1
    assert ratios["text kept back"] <= 1.01
    if within_s < 60:  # The place of the median is far before the end of a long queue.
        assert ratios["text kept back, to the median"] > 2


def held(bench: Bench, number: int, *senders: dict[str, Any]) -> None:
    """Each sender sends so many requests at once; no score is there before all are sent."""

    async def main() -> None:
        scorer = SlowScorer()
        bench.scores.scorer = scorer  # type: ignore[assignment]
        calls = [
            asyncio.create_task(bench.call(b'{"prompt": "x"}', "/v1/completions", **sender))
            for sender in senders
            for _ in range(number)
        ]
        for _ in range(5):
            await asyncio.sleep(0)
        scorer.ready.set()
        await asyncio.gather(*calls)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("first", "second", "scored"),
    [
        (key("sk-a"), key("sk-b"), 4 + 4),  # each key has a budget of its own
        (key("sk-a"), key("sk-a"), 4),
        (key("invented-1"), key("invented-2"), 4),  # one address
        ({"client": ("10.0.0.1", 1)}, {"client": ("10.0.0.2", 1)}, 4 + 4),
        ({"client": ("10.0.0.1", 1)}, {"client": ("10.0.0.1", 2)}, 4),
        ({"client": ("2001:db8::1", 1)}, {"client": ("2001:db8::2:1", 1)}, 4),
        ({"client": ("2001:db8::1", 1)}, {"client": ("2001:db8:0:1::1", 1)}, 4 + 4),
        ({"client": None}, {"client": None}, 4),
        (key("sk-gate"), key("sk-gate"), 20),
    ],
)
def test_a_client_has_no_more_than_its_share_of_the_scores(first, second, scored):
    classes = UserClasses(
        tbt_s={"chat": None}, api_keys={"sk-a": "chat", "sk-b": "chat"}, trusted_keys=("sk-gate",)
    )
    bench = Bench(None, classes=classes, max_scores_per_key=4)
    held(bench, 10, first, second)
    assert bench.count("scored") == scored
    assert bench.count("unscored", "budget") == 20 - scored
    assert bench.scores.in_progress == {}


def test_a_late_score_holds_its_place_while_it_is_requested():
    async def main() -> None:
        bench, _ = late_bench(SlowScorer())
        bench.configure(max_scores_per_key=1)
        seen: list[Any] = []

        async def engine(scope: Any, receive: Any, send: Any) -> None:
            seen.append(dict(bench.scores.in_progress))
            if len(seen) == 1:
                await bench.call(b'{"prompt": "second"}')
            await send({"type": "http.response.start", "status": 200, "headers": []})

        bench.middleware.app = engine
        await bench.call(b'{"prompt": "first"}')
        async with asyncio.timeout(60):
            while bench.scores.in_progress:
                await asyncio.sleep(0)
        assert seen == [{"10.1.2.3": 1}, {"10.1.2.3": 1}]
        assert bench.count("unscored", "budget") == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    "outcome", ["timeout", "breaker_open", "unavailable", "invalid_prompt", "error"]
)
def test_without_a_score_the_request_goes_on_as_it_was_sent(outcome):
    scorer = FakeScorer(outcome)
    bench = late_bench(scorer)[0] if outcome in ("invalid_prompt", "error") else Bench(scorer)
    bench.post(sent := b'{"prompt":  "hello"}')
    assert bench.server.content == sent
    assert bench.count("late" if outcome == "timeout" else "unscored", outcome) == 1


WITHOUT_TEXT: list[Any] = [
    [1, 2, 3], [[1, 2], [3]], ["text", [3]], ["text", ""], [], "", None, {"a": 1}, 5,
    ["text"] * (MOST_PROMPTS + 1),
]  # fmt: skip


@pytest.mark.parametrize("prompt", WITHOUT_TEXT)
def test_a_prompt_without_text_ranks_behind_scored_ones(prompt):
    scorer = FakeScorer()
    bench = Bench(scorer, classes=CLASSES)
    plain = {"lengthwise_class": "batch"}
    assert bench.hints({"prompt": prompt}) == plain  # behind nobody yet
    bench.post({"prompt": "x" * 40})
    bench.post({"prompt": "hello"})
    last = plain | {"lengthwise_score": 40.0}
    assert bench.hints({"prompt": prompt}) == last
    assert bench.hints({"prompt": prompt}, **key("sk-gate")) == plain
    bench.configure(unscored_last=False)
    assert bench.hints({"prompt": prompt}) == plain
    assert scorer.asked == ["x" * 40, "hello"]
    assert bench.count("unscored", "no_text") == 4


@pytest.mark.parametrize(
    "hides",
    [
        lambda size: {"prompt": "truncated".ljust(size)},
        lambda size: {"prompt": ["truncated", "x" * size]},
        lambda size: {"prompt": "x" * size + " " * 10 * MAX_CHARACTERS},
    ],
)
def test_a_request_read_in_part_ranks_last_and_in_its_order(hides):
    bench = Bench(FakeScorer(quantiles={0.5: 70.0}), classes=CLASSES)
    bench.post({"prompt": "a longest prompt, " * 2000})
    top = bench.scores.highest_score
    assert top == MAX_CHARACTERS + 1  # itself cut, and the first
    carried = [bench.hints(hides(size)) for size in (12, 11)]
    first, second = (each["lengthwise_score"] for each in carried)
    assert 0.999 * top < second < first < top
    assert carried[0]["lengthwise_quantiles"] == [0.5, 70.0]
    assert bench.count("scored", "cut") == 3
    believed = bench.hints(hides(12), **key("sk-gate"))["lengthwise_score"]
    assert believed < 30
    bench.configure(unscored_last=False)
    assert bench.hints(hides(12))["lengthwise_score"] == believed


@pytest.mark.parametrize("outcome", sorted({"error", "unavailable", "timeout"} | UNSCORABLE))
def test_only_what_a_client_controls_puts_it_behind_all(outcome):
    bench = Bench(FakeScorer(outcome))
    bench.scores.highest_score = 40.0
    if outcome == "budget":
        bench.scores.in_progress["10.1.2.3"] = 512
    sent = {"prompt": [1] if outcome == "no_text" else "hello"}
    hints = bench.hints(sent)
    assert hints == ({"lengthwise_score": 40.0} if outcome in UNSCORABLE else {})


def test_of_several_prompts_the_longest_answer_counts():
    bench = Bench(FakeScorer(), max_scores_per_key=3)
    assert bench.hints({"prompt": ["a", "bbb", "cc"]}) == {"lengthwise_score": 3.0}
    assert bench.scores.in_progress == {}
    bench.post({"prompt": ["a", "b", "c", "d"]})
    assert (bench.count("scored"), bench.count("unscored", "budget")) == (1, 1)
    for outcome in ("overloaded", "invalid_prompt"):
        one = Bench(FakeScorer(outcome))
        one.post({"prompt": ["a", "b"]})
        assert one.count("unscored", outcome) == 1


class SlowScorer(FakeScorer):
    """Answers once it is let to."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = asyncio.Event()

    async def ask_async(self, prompt: str, client: str = "") -> Answer:
        await self.ready.wait()
        return await super().ask_async(prompt, client)


class Sending(LateScoring):
    """Notes the scores sent to the engines."""

    def __init__(self, count: Any) -> None:
        super().__init__(Path(), late_s=60, count=count)
        self._socket.close()
        self.sent: list[Any] = []

    async def send(self, carried: Any) -> None:
        self.sent.append(carried)


def late_bench(scorer: Any) -> tuple[Bench, Sending]:
    """A middleware with a short deadline, and the late scores that it sends."""
    bench = Bench(scorer, deadline_s=0.01)
    bench.scores.late = late = Sending(bench.scores.metrics.count_late)
    return bench, late


@pytest.mark.parametrize("is_trial", [False, True])
def test_a_score_after_the_deadline_follows_its_request(is_trial):
    async def main() -> None:
        scorer = SlowScorer()
        bench, late = late_bench(scorer)
        if is_trial:  # of a service that was away: no deadline is waited for
            scorer.away_s = 0.0
            bench.configure(deadline_s=59.0)
        reached = asyncio.Event()

        async def engine(scope: Any, receive: Any, send: Any) -> None:
            await bench.server(scope, receive, lambda message: asyncio.sleep(0))
            reached.set()
            while not late.sent:  # it waits in the queue
                await asyncio.sleep(0.001)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"a", "more_body": False})

        bench.middleware.app = engine
        call = asyncio.create_task(bench.call(b'{"prompt": "hello"}'))
        await asyncio.wait_for(reached.wait(), 30)
        scorer.ready.set()
        assert (await asyncio.wait_for(call, 60))[-1]["body"] == b"a"
        request_key = json.loads(bench.server.content)["vllm_xargs"]["lengthwise_request_key"]
        assert late.sent == [{"lengthwise_score": 5.0, "lengthwise_request_key": request_key}]
        assert len(request_key) == 32
        assert bench.count("late", "timeout") == 1
        assert bench.sample("late_scores_total", outcome="sent") == 1
        # What its client keeps from being scored ranks behind late scores, too.
        bench.middleware.app = bench.server
        await bench.call(b'{"prompt": [1, 2]}')
        assert json.loads(bench.server.content)["vllm_xargs"] == {"lengthwise_score": 5.0}

    asyncio.run(main())


@pytest.mark.parametrize("fails", [False, True])
def test_the_answer_ends_the_request_of_a_late_score(fails):
    async def main() -> None:
        bench, late = late_bench(SlowScorer())

        async def engine(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await asyncio.sleep(0)
            assert len(late._tasks) == 1
            if fails:
                raise RuntimeError("the engine is dead")
            await send({"type": "http.response.body", "body": b"a", "more_body": True})
            while late._tasks:
                await asyncio.sleep(0.001)
            await send({"type": "http.response.body", "body": b"b", "more_body": False})

        bench.middleware.app = engine
        call = asyncio.wait_for(bench.call(b'{"prompt": "hello"}'), 60)
        with pytest.raises(RuntimeError, match="dead") if fails else nullcontext():
            assert (await call)[-1]["body"] == b"b"
        while late._tasks:
            await asyncio.sleep(0)
        assert bench.sample("late_scores_total", outcome="started") == 1
        assert late.sent == []

    asyncio.run(main())


def test_no_score_is_awaited_of_a_service_long_away(monkeypatch):
    """Such a request is not read, and reaches the server as it was sent."""
    scorer = FakeScorer()
    bench, body = Bench(scorer, late_s=5.0), b'{"prompt":  "hello"}'
    with monkeypatch.context() as patched:
        patched.setattr(client_bodies, "parse", None)
        scorer.away_s = 5.1
        asyncio.run(bench.call(body))
    assert (bench.server.content, scorer.asked) == (body, [])
    assert bench.count("unscored", "breaker_open") == 1
    # Hints are still dropped.
    bench.post({"prompt": "hello", "vllm_xargs": {"lengthwise_score": 3.0}})
    assert b"lengthwise_score" not in bench.server.content
    scorer.away_s = 0.0  # a trial
    bench.post({"prompt": "hello"})
    assert scorer.asked == ["hello"]


@contextmanager
def silent_service(bundle: Any, **settings: Any) -> Iterator[tuple[ScoringServer, threading.Event]]:
    """A service that answers no call before the event, which is set at the end."""
    model, proceed = RankerModel.load(bundle), threading.Event()
    real = model.scorer.score
    model.scorer.score = lambda ids: (proceed.wait(300), real(ids))[1]  # type: ignore[method-assign]
    config = ServerConfig(address="127.0.0.1:0", drain_grace_s=0, **settings)
    service = ScoringServer(model, config)
    service.start()
    yield service, proceed
    proceed.set()
    service.stop()


def scorer_at(service: ScoringServer, budget_s: float) -> FailOpenScorer:
    """A scorer that, once it has left a service alone, does not try it again."""
    breaker = CircuitBreaker(open_s=3600.0, max_open_s=3600.0)
    return FailOpenScorer(service.target, budget_s=budget_s, breaker=breaker)


def test_a_service_that_never_answers_is_soon_left_alone(monkeypatch, tiny_bundle):
    """However late the scores of its requests may be."""
    monkeypatch.setattr(fail_open, "SILENT_S", 0.1)
    with silent_service(tiny_bundle) as (service, _):
        scorer = scorer_at(service, 3000.0)
        bench = Bench(scorer, deadline_s=0.2, late_s=3000.0)
        bench.scores.late = Sending(bench.scores.metrics.count_late)

        async def main() -> None:
            for number in range(5):
                await bench.call(b'{"prompt": "hello %d"}' % number)

        asyncio.run(main())
        assert bench.count("late", "timeout") == 3
        assert bench.count("unscored", "breaker_open") == 2
        assert bench.scores.in_progress == {}
        scorer.close()


@pytest.mark.parametrize("count", [1, 700])
@pytest.mark.parametrize("state", ["dead", "hung", "refusing", "slow"])
def test_no_request_ranks_last_because_the_service_is_away(state, count, tiny_bundle, tmp_path):
    """All of one address, without and with text; none keeps a place of the scores."""
    (tmp_path / "token").write_text("sk-1\n")
    token = {"token_file": str(tmp_path / "token")} if state == "refusing" else {}
    with silent_service(tiny_bundle, **token) as (service, proceed):
        scorer = scorer_at(service, 0.3)
        bench, reached = Bench(scorer, deadline_s=0.05), list[Any]()
        bench.scores.highest_score = 40.0
        if state == "dead":
            service.stop()

        async def engine(scope: Any, receive: Any, send: Any) -> None:
            reached.append(json.loads((await receive())["body"]).get("vllm_xargs"))

        async def burst() -> None:
            body = b'{"prompt": "hello"}'
            await asyncio.gather(*(bench.call(body) for _ in range(count)))

        async def main() -> None:
            bench.middleware.app = engine
            await burst()
            if state == "slow":  # in time for none, and answers all
                proceed.set()
                return
            async with asyncio.timeout(120):
                while not scorer.away_s:
                    await burst()
            await burst()
            asked = bench.sample("score_wait_seconds_count")
            await bench.call(b'{"prompt": [1, 2]}')
            assert bench.sample("score_wait_seconds_count") == asked
            while bench.scores.in_progress:
                await asyncio.sleep(0.01)

        asyncio.run(main())
        assert len(reached) > count - 1
        assert not any(reached)
        assert bench.count("unscored", "budget") == 0
        proceed.set()
        scorer.close()
