import os
import time
from pathlib import Path

import pytest

from lengthwise.errors import ConfigError
from scheduler_adapters.timeline.latency_metrics import summarize
from scheduler_adapters.timeline.live_log import TimelineLog
from scheduler_adapters.timeline.timeline import read_timeline
from scheduler_adapters.views import RequestView


def view(name: str, number: int, arrival_s: float) -> RequestView:
    return RequestView(
        request_id=name,
        number=number,
        arrival_s=arrival_s,
        prompt_tokens=4,
        user_class="chat",
        tbt_s=0.1 if name == "late" else None,
        thinking_tokens=1 if name == "late" else 0,
        preemptions=2 if name == "late" else 0,
        score=2.5 if name == "late" else None,
    )


def serve_one(log: TimelineLog) -> None:
    """A request of one token."""
    request = view("a", 0, 1.0)
    log.admitted(request, 1.0)
    log.emitted(request, 1, 2.0)
    log.finished(request, 104.0)


def test_what_is_written_reads_as_a_timeline(tmp_path):
    log = TimelineLog(str(tmp_path / "t.jsonl"), start_s=100.0)
    early, late = view("early", 0, 101.0), view("late", 1, 102.0)
    gone = view("gone", 2, 102.0)
    log.admitted(early, 101.5)
    log.admitted(late, 102.0)
    log.admitted(gone, 102.0)
    log.emitted(late, 1, 103.0)
    log.emitted(early, 2, 103.0)
    log.emitted(gone, 1, 103.0)
    log.emitted(late, 1, 103.5)
    log.finished(late, 104.0)
    log.withdrawn(gone, 103.5)
    log.withdrawn(late, 103.5)
    log.emitted(gone, 1, 104.0)
    log.finished(gone, 104.0)
    log.emitted(early, 1, 104.0)
    log.finished(early, 104.0)
    log.close()
    timeline = read_timeline(tmp_path / "t.jsonl")
    # Written as they finished, read as they arrived.
    assert list(timeline.requests.request_id) == ["early", "late"]
    assert list(timeline.requests.arrival_s) == [1.0, 2.0]
    assert list(timeline.token_s(0)) == [3.0, 3.0, 4.0]
    assert list(timeline.token_s(1)) == [3.0, 3.5]
    assert list(timeline.scheduled_s) == [1.5, 2.0]
    assert list(timeline.first_answer_s) == [3.0, 3.5]
    assert list(timeline.preemptions) == [0, 2]
    assert timeline.requests.score[1] == 2.5


def test_answers_begin_where_the_end_of_thinking_was_told(tmp_path):
    log = TimelineLog(str(tmp_path / "t.jsonl"), start_s=0.0)
    requests = [view(name, number, 1.0) for number, name in enumerate(("off", "on"))]
    for request in requests:
        log.admitted(request, 1.0)
    log.thinking_ended(requests[0], 1.0)
    log.thinking_ended(view("gone", 2, 1.0), 1.0)
    for number in range(1, 5):
        for request in requests:
            log.emitted(request, 1, 1.0 + number)
        if number >= 2:
            log.thinking_ended(requests[1], 1.0 + number)
    for request in requests:
        log.finished(request, 5.0)
    log.close()
    timeline = read_timeline(tmp_path / "t.jsonl")
    assert list(timeline.requests.reasoning_tokens) == [0, 2]
    assert list(timeline.first_answer_s) == [2.0, 4.0]


def test_an_answer_is_scheduled_as_the_step_before_it_ends(tmp_path):
    log = TimelineLog(str(tmp_path / "t.jsonl"), start_s=1.0)
    request = view("a", 0, 1.0)
    log.admitted(request, 1.0)
    for number, now_s in enumerate((2.0, 7.0, 7.5)):
        log.emitted(request, 1, now_s)
        if not number:
            log.thinking_ended(request, now_s)
        if number < 2:
            log.stepped(now_s if number else 6.0)  # others run on while it is blocked
    log.finished(request, 7.5)
    log.close()
    timeline = read_timeline(tmp_path / "t.jsonl")
    assert timeline.answer_scheduled_s.tolist() == [5.0]
    assert summarize(timeline).blocking_s.mean == 4.0


def test_two_engines_append_to_one_file(tmp_path):
    for number in range(2):
        log = TimelineLog(str(tmp_path / "t.jsonl"), start_s=0.0, instance=number)
        serve_one(log)
        log.close()
    assert list(read_timeline(tmp_path / "t.jsonl").instance) == [0, 1]


def test_a_closed_log_has_written_all_and_holds_no_file(tmp_path):
    descriptors = Path("/proc/self/fd")
    path = tmp_path / "t.jsonl"
    log = TimelineLog(str(path), start_s=0.0)
    assert path in {link.resolve() for link in descriptors.iterdir()}
    serve_one(log)
    log.close()
    log.close()
    assert len(read_timeline(path).requests) == 1
    assert path not in {link.resolve() for link in descriptors.iterdir()}


@pytest.mark.parametrize("fault", ["full", "half", "removed"])
def test_a_line_that_cannot_be_written_leaves_no_half_line(fault, tmp_path, monkeypatch, caplog):
    path = Path("/dev/full") if fault == "full" else tmp_path / "t.jsonl"
    log = TimelineLog(str(path), start_s=0.0)
    real = os.write
    if fault == "half":
        monkeypatch.setattr(os, "write", lambda file, content: real(file, content[:9]))
    if fault == "removed":
        path.unlink()
    for count in (1, 2):
        serve_one(log)
        while log.drops.count < count:
            time.sleep(0.001)
    if fault == "half":  # there is room again
        monkeypatch.undo()
        serve_one(log)
    log.close()
    assert len(caplog.messages) == 1
    if fault == "half":
        assert len(read_timeline(path).requests) == 1


def test_a_pipe_that_nobody_reads_delays_neither_start_nor_end(tmp_path):
    os.mkfifo(tmp_path / "t.jsonl")
    with pytest.raises(ConfigError, match="cannot be written"):
        TimelineLog(str(tmp_path / "t.jsonl"), start_s=0.0)
    reader = os.open(tmp_path / "t.jsonl", os.O_RDONLY | os.O_NONBLOCK)
    log = TimelineLog(str(tmp_path / "t.jsonl"), start_s=0.0)
    for _ in range(1024):  # more than a pipe holds
        serve_one(log)
    log.close()
    os.close(reader)
