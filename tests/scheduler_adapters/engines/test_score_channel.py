"""Late scores from one process to another: all arrive, once, and nothing else does."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

import pytest

from scheduler_adapters.engines.engine_metrics import METRICS_FOLDER
from scheduler_adapters.engines.score_channel import (
    ScoreReceiver,
    ScoreSender,
    receiver_from_environment,
)
from scheduler_adapters.planner.late_scores import LateScore
from scheduler_adapters.planner.request_annotations import QUANTILES, SCORE, TICKET


def ticket(number: int) -> str:
    return f"{number:032x}"


@pytest.fixture
def sender(tmp_path: Path) -> Iterator[ScoreSender]:
    made = ScoreSender(tmp_path)
    yield made
    made.close()


def test_more_scores_than_a_socket_holds_arrive_at_every_engine(
    tmp_path: Path, sender: ScoreSender
) -> None:
    taken: list[Queue[LateScore]] = [Queue(), Queue()]
    receivers = [ScoreReceiver(tmp_path, n, queue.put) for n, queue in enumerate(taken)]

    async def send() -> None:
        hints = ({TICKET: ticket(n), SCORE: n, QUANTILES: [0.5, n]} for n in range(500))
        await asyncio.wait_for(asyncio.gather(*map(sender.send, hints)), 60)

    asyncio.run(send())
    for queue in taken:
        got = sorted(queue.get(timeout=300) for _ in range(500))
        assert got == [LateScore(ticket(n), float(n), ((0.5, float(n)),)) for n in range(500)]
    for receiver in receivers:
        receiver.close()


def test_only_the_same_user_may_send_and_nothing_is_left_behind(tmp_path: Path) -> None:
    receiver = ScoreReceiver(tmp_path, 3, lambda late: None)
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    receiver.close()
    assert not list(tmp_path.iterdir())


def test_what_is_no_score_is_dropped_and_the_next_one_is_read(
    tmp_path: Path, sender: ScoreSender
) -> None:
    taken: Queue[LateScore] = Queue()
    receiver = ScoreReceiver(tmp_path, 0, taken.put)
    (path,) = tmp_path.iterdir()
    strange = [b"", b"\xff", b"5", b"[" * 9000, b'{"lengthwise_score": 1}']
    strange += [json.dumps({TICKET: ticket(1), SCORE: "3"}).encode(), b'{"lengthwise_ticket": 1}']
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as raw:
        for content in strange:
            raw.sendto(content, str(path))  # blocks while the socket is full
    asyncio.run(sender.send({TICKET: ticket(2), SCORE: 4}))
    assert taken.get(timeout=300) == LateScore(ticket(2), 4.0)
    assert taken.empty()
    receiver.close()


def test_an_engine_that_has_gone_is_passed_over(tmp_path: Path, sender: ScoreSender) -> None:
    gone = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    gone.bind(str(tmp_path / "lengthwise-scores-0.sock"))
    gone.close()  # as after a crash: the file stays
    asyncio.run(asyncio.wait_for(sender.send({TICKET: ticket(1), SCORE: 1}), 60))
    taken: Queue[LateScore] = Queue()
    back = ScoreReceiver(tmp_path, 0, taken.put)
    asyncio.run(sender.send({TICKET: ticket(2), SCORE: 1}))
    assert taken.get(timeout=300).ticket == ticket(2)
    back.close()


def test_without_a_shared_folder_or_in_one_that_cannot_be_there_are_no_late_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(METRICS_FOLDER, raising=False)
    assert receiver_from_environment(0, print) is None
    monkeypatch.setenv(METRICS_FOLDER, str(tmp_path / ("long" * 40)))
    assert receiver_from_environment(0, print) is None
    assert "cannot be received" in caplog.text
    monkeypatch.setenv(METRICS_FOLDER, str(tmp_path))
    receiver = receiver_from_environment(0, print)
    assert receiver is not None
    receiver.close()
