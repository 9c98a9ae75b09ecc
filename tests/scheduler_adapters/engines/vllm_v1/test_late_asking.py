"""Scores that are asked for after their deadline: sent once, retried, bounded, ended in time."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any

import pytest

from scheduler_adapters.engines.vllm_v1 import late_asking
from scheduler_adapters.engines.vllm_v1.late_asking import LateAsking
from scheduler_adapters.planner.request_annotations import SCORE, TICKET
from scoring_service.client import Score
from scoring_service.client.fail_open import Answer

SCORED = Answer(Score(value=7.0, revision="r", prompt_tokens=1, truncated=False), "scored")


class Sender:
    """Notes what is sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    async def send(self, hints: dict[str, Any]) -> None:
        self.sent.append(hints)


class Scorer:
    """Answers in turn what it was given; after that it does not answer."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def ask_async(self, prompt: str, client: str = "") -> Answer:
        self.asked.append(prompt)
        if not self.answers:
            await asyncio.Event().wait()
        return self.answers.pop(0)


class Bench:
    """One `LateAsking` with its fakes."""

    def __init__(self, *answers: Answer, late_s: float = 60.0) -> None:
        self.scorer, self.sender, self.counts = Scorer(*answers), Sender(), Counter[str]()
        self.num_open = 0
        self.late = LateAsking(
            self.sender,  # type: ignore[arg-type]
            late_s=late_s,
            count=lambda outcome: self.counts.update([outcome]),
        )

    def start(self) -> str | None:
        ask = partial(self.scorer.ask_async, "prompt")
        ticket = self.late.start(asyncio.ensure_future(ask()), ask, self.end)
        self.num_open += ticket is not None
        return ticket

    def end(self) -> None:
        self.num_open -= 1

    async def ended(self) -> Counter[str]:
        while self.late._tasks:
            await asyncio.wait(self.late._tasks.values())
        assert self.num_open == 0
        return self.counts


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_asking, "_FIRST_PAUSE_S", 1e-4)
    monkeypatch.setattr(late_asking, "_LONGEST_PAUSE_S", 1e-3)


def test_a_score_is_sent_with_its_ticket() -> None:
    async def main() -> None:
        bench = Bench(SCORED)
        ticket = bench.start()
        assert ticket is not None
        assert await bench.ended() == {"sent": 1}
        assert bench.sender.sent == [{SCORE: 7.0, TICKET: ticket}]

    asyncio.run(main())


def test_what_a_moment_refused_is_asked_again() -> None:
    refused = [Answer(None, outcome) for outcome in sorted(late_asking.RETRIED)]

    async def main() -> None:
        bench = Bench(*refused, SCORED)
        bench.start()
        assert await bench.ended() == {"sent": 1}
        assert bench.scorer.asked == ["prompt"] * 5

    asyncio.run(main())


def test_what_will_stay_refused_is_not() -> None:
    async def main() -> None:
        bench = Bench(Answer(None, "invalid_prompt"))
        bench.start()
        assert await bench.ended() == {"invalid_prompt": 1}
        assert bench.sender.sent == []

    asyncio.run(main())


def test_it_gives_up_after_its_time() -> None:
    async def main() -> None:
        bench = Bench(Answer(None, "overloaded"), late_s=0.05)  # after that no answer comes
        bench.start()
        assert await bench.ended() == {"timeout": 1}

    asyncio.run(main())


def test_it_ends_when_the_request_has_started() -> None:
    async def main() -> None:
        bench = Bench()
        ticket = bench.start()
        assert ticket is not None
        await asyncio.sleep(0)
        bench.late.stop(ticket)
        assert await bench.ended() == {"started": 1}
        bench.late.stop(ticket)  # no matter how often
        assert bench.sender.sent == []

    asyncio.run(main())


def test_too_many_at_once_stay_without_a_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_asking, "MOST", 2)

    async def main() -> None:
        bench = Bench()
        tickets = [bench.start() for _ in range(3)]
        assert tickets[2] is None
        assert len({*tickets}) == 3
        assert bench.counts == {"full": 1}
        for ticket in tickets[:2]:
            bench.late.stop(str(ticket))
        await asyncio.sleep(0)
        assert await bench.ended() == {"full": 1, "started": 2}
        assert bench.start() is not None

    asyncio.run(main())
