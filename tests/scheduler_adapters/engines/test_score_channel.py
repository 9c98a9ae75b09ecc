"""Late scores from one process to another: requested, retried, sent once, bounded in number."""

import asyncio
import json
import socket
import stat
from collections import Counter
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from scheduler_adapters.engines import score_channel
from scheduler_adapters.engines.engine_sockets import SHARED_FOLDER
from scheduler_adapters.engines.score_channel import (
    RETRIED,
    LateScoring,
    receiver_from_environment,
    score_receiver,
)
from scheduler_adapters.planner.late_scores import LateScore
from scheduler_adapters.planner.request_annotations import QUANTILES, REQUEST_KEY, SCORE
from scoring_service.client import Score
from scoring_service.client.fail_open import Answer


def key_of(number: int) -> str:
    return f"{number:032x}"


@pytest.fixture
def sender(tmp_path):
    made = LateScoring(tmp_path, late_s=60.0, count=print)
    yield made
    made._socket.close()


def test_more_scores_than_a_socket_holds_arrive_at_every_engine(tmp_path, sender):
    taken: list[Queue[LateScore]] = [Queue(), Queue()]
    receivers = [score_receiver(tmp_path, n, queue.put) for n, queue in enumerate(taken)]

    async def send() -> None:
        hints = ({REQUEST_KEY: key_of(n), SCORE: n, QUANTILES: [0.5, n]} for n in range(500))
        await asyncio.wait_for(asyncio.gather(*map(sender.send, hints)), 60)

    asyncio.run(send())
    for queue in taken:
        got = sorted(queue.get(timeout=300) for _ in range(500))
        assert got == [LateScore(key_of(n), float(n), ((0.5, float(n)),)) for n in range(500)]
    for receiver in receivers:
        receiver.close()


def test_only_the_same_user_may_send_and_nothing_is_left_behind(tmp_path):
    receiver = score_receiver(tmp_path, 3, lambda late: None)
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    receiver.close()
    assert not list(tmp_path.iterdir())


def test_what_is_no_score_is_dropped_and_the_next_one_is_read(tmp_path, sender):
    taken: Queue[LateScore] = Queue()
    receiver = score_receiver(tmp_path, 0, taken.put)
    (path,) = tmp_path.iterdir()
    strange = [b"", b"\xff", b"5", b"[" * 9000, b'{"lengthwise_score": 1}']
    strange += [
        json.dumps({REQUEST_KEY: key_of(1), SCORE: "3"}).encode(),
        b'{"lengthwise_request_key": 1}',
    ]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as raw:
        for content in strange:
            raw.sendto(content, str(path))  # blocks while the socket is full
    asyncio.run(sender.send({REQUEST_KEY: key_of(2), SCORE: 4}))
    assert taken.get(timeout=300) == LateScore(key_of(2), 4.0)
    assert taken.empty()
    receiver.close()


def test_an_engine_that_has_gone_is_passed_over(tmp_path, sender):
    gone = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    gone.bind(str(tmp_path / "lengthwise-scores-0.sock"))
    gone.close()  # as after a crash: the file stays
    asyncio.run(asyncio.wait_for(sender.send({REQUEST_KEY: key_of(1), SCORE: 1}), 60))
    taken: Queue[LateScore] = Queue()
    back = score_receiver(tmp_path, 0, taken.put)
    asyncio.run(sender.send({REQUEST_KEY: key_of(2), SCORE: 1}))
    assert taken.get(timeout=300).key == key_of(2)
    back.close()


def test_without_a_usable_folder_there_are_no_late_scores(tmp_path, monkeypatch, caplog):
    monkeypatch.delenv(SHARED_FOLDER, raising=False)
    assert receiver_from_environment(0, print) is None
    monkeypatch.setenv(SHARED_FOLDER, str(tmp_path / ("long" * 40)))
    assert receiver_from_environment(0, print) is None
    assert "cannot be received" in caplog.text
    monkeypatch.setenv(SHARED_FOLDER, str(tmp_path))
    receiver = receiver_from_environment(0, print)
    assert receiver is not None
    receiver.close()


SCORED = Answer(Score(value=7.0, revision="r", prompt_tokens=1, truncated=False), "scored")


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
    """One `LateScoring` with a fake scorer, and the scores that it sends."""

    def __init__(self, *answers: Answer, late_s: float = 60.0) -> None:
        self.scorer, self.counts = Scorer(*answers), Counter[str]()
        self.sent: list[Any] = []
        self.late = LateScoring(
            Path(), late_s=late_s, count=lambda outcome: self.counts.update([outcome])
        )
        self.late.send = self.send  # type: ignore[method-assign]

    async def send(self, carried: Any) -> None:
        self.sent.append(carried)

    def start(self) -> str | None:
        ask = partial(self.scorer.ask_async, "prompt")
        return self.late.start(asyncio.ensure_future(ask()), ask)

    async def ended(self) -> Counter[str]:
        while self.late._tasks:
            await asyncio.wait(self.late._tasks.values())
        self.late._socket.close()
        return self.counts


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch):
    monkeypatch.setattr(score_channel, "_FIRST_PAUSE_S", 1e-4)
    monkeypatch.setattr(score_channel, "_LONGEST_PAUSE_S", 1e-3)


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        ([SCORED], "sent"),
        ([*(Answer(None, outcome) for outcome in sorted(RETRIED)), SCORED], "sent"),
        ([Answer(None, "invalid_prompt")], "invalid_prompt"),
        ([Answer(None, "overloaded")], "timeout"),  # after that no answer comes
        ([Answer(None, "breaker_open", 60.0)], "timeout"),  # it is not asked again before
    ],
)
def test_an_outcome_that_may_change_is_retried(answers, outcome):
    async def main() -> None:
        bench = Bench(*answers, late_s=0.05 if outcome == "timeout" else 60.0)
        key = bench.start()
        assert key is not None
        assert await bench.ended() == {outcome: 1}
        assert bench.sent == [{SCORE: 7.0, REQUEST_KEY: key}] * (outcome == "sent")
        if outcome != "timeout" or answers[0].retry_s:
            assert bench.scorer.asked == ["prompt"] * len(answers)

    asyncio.run(main())


def test_too_many_at_once_stay_without_a_score(monkeypatch):
    monkeypatch.setattr(score_channel, "MAX_LATE", 2)

    async def main() -> None:
        bench = Bench()
        keys = [bench.start() for _ in range(3)]
        assert keys[2] is None
        assert len({*keys}) == 3
        assert bench.counts == {"full": 1}
        for key in keys[:2]:
            bench.late.stop(str(key))
        await asyncio.sleep(0)
        assert await bench.ended() == {"full": 1, "started": 2}
        assert bench.start() is not None

    asyncio.run(main())
