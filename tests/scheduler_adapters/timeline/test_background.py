"""A writer that is blocked or fails delays no step; drops are counted and logged once."""

import threading
from collections.abc import Sequence

from scheduler_adapters.timeline import background
from scheduler_adapters.timeline.background import MAX_WAITING, BackgroundWriter


def test_a_blocked_writer_holds_up_nobody_and_is_left_at_the_end(monkeypatch, caplog):
    monkeypatch.setattr(background, "_CLOSE_S", 0.05)
    begun, proceed, written = threading.Event(), threading.Event(), list[int]()

    def write(items: Sequence[int]) -> None:
        begun.set()
        proceed.wait(300)
        written.extend(items)

    writer = BackgroundWriter("numbers", write)
    writer.put(0)
    assert begun.wait(300)
    for number in range(1, MAX_WAITING + 6):
        writer.put(number)
    assert writer.drops.count == 5
    assert not writer.close()
    assert len(caplog.messages) == 1
    proceed.set()
    writer._thread.join(300)
    assert written == [0]


def test_a_failed_write_drops_its_items_and_later_ones_are_kept(caplog):
    written, failed = list[str](), threading.Semaphore(0)

    def write(items: Sequence[str]) -> None:
        if "bad" in items:
            failed.release()
            raise OSError("the disk is full")
        written.extend(items)

    writer = BackgroundWriter("words", write)
    for _ in range(2):
        writer.put("bad")
        assert failed.acquire(timeout=300)
    while writer.drops.count < 2:
        pass
    writer.put("good")
    assert writer.close()
    assert written == ["good"]
    assert [message for message in caplog.messages if "words" in message] == caplog.messages[:1]
    assert len(caplog.messages) == 1
