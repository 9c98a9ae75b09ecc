"""Calls without threads: each gets one answer, none harms the server, nothing is left behind."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from scoring_service.transport.direct import ClientBlocked, DirectMethod, supports
from tests.scoring_service.waiting import no_messages, wait_until

METHOD = "/test.Service/Method"


class Echo:
    """A server whose one method does what its message orders; `held` calls are answered by hand."""

    def __init__(self, timeout_s=60.0, max_unsent=1000, admit=None):
        self.held, self.cancelled = [], []
        self.blocked = ClientBlocked.make(timeout_s=timeout_s, max_unsent=max_unsent)
        self.server = grpc.server(ThreadPoolExecutor(2))
        assert supports(self.server)
        self.method = DirectMethod(self.server, METHOD, self.handle, self.blocked, admit)
        port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()
        self.method.start()
        self.target = f"127.0.0.1:{port}"
        self.channel = grpc.insecure_channel(self.target)
        self.call = self.channel.unary_unary(METHOD)

    def handle(self, call, message):
        call.on_cancel = lambda: self.cancelled.append(message)
        if message == b"raise":
            raise ValueError("as told")
        if message == b"answer, then raise":
            call.respond(b"answered")
            raise ValueError("as told")
        if message == b"fail":
            call.fail(grpc.StatusCode.NOT_FOUND, "as told: \u00e4", (("key-bin", b"\0value"),))
        elif message == b"hold":
            self.held.append(call)
        elif message == b"elsewhere":
            threading.Timer(0.001, call.respond, [b"elsewhere"]).start()
        else:
            call.respond(message)

    def stalled(self):
        """A call that is opened and never sends its message."""
        done = threading.Event()
        call = self.channel.stream_unary(METHOD).future(no_messages(done), timeout=60)
        call.add_done_callback(lambda _: done.set())
        return call


@pytest.fixture
def echo():
    made = []

    def make(**settings):
        made.append(Echo(**settings))
        return made[-1]

    yield make
    for one in made:
        for call in one.held:
            call.fail(grpc.StatusCode.CANCELLED, "the test is over")
        one.channel.close()
        assert one.server.stop(0.5).wait(60)


def test_a_call_is_answered_from_any_thread(echo):
    echo = echo()
    assert echo.call(b"x" * 100_000, timeout=60) == b"x" * 100_000
    assert echo.call(b"", timeout=60) == b""
    assert echo.call(b"elsewhere", timeout=60) == b"elsewhere"
    wait_until(lambda: echo.method.num_open == 0)


def test_a_call_that_comes_as_the_server_stops_is_answered(echo):
    stopped = []

    def admit(call):
        """On the thread that serves all calls: for the second call the end has begun meanwhile."""
        if echo.held:
            stopped.append(echo.server.stop(60))
        return True

    echo = echo(admit=admit)
    first = echo.call.future(b"hold", timeout=60)
    wait_until(lambda: echo.held)
    assert echo.call(b"second", timeout=60) == b"second"
    echo.held.pop().respond(b"first")
    assert first.result(60) == b"first"
    assert stopped[0].wait(60)


def test_a_failure_carries_code_details_and_metadata(echo):
    error = echo().call.future(b"fail", timeout=60)
    assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "as told: \u00e4")
    assert ("key-bin", b"\0value") in error.trailing_metadata()


def test_a_handler_that_raises_ends_its_call_only(echo, caplog):
    echo = echo()
    assert echo.call.future(b"raise", timeout=60).code() is grpc.StatusCode.INTERNAL
    assert echo.call(b"answer, then raise", timeout=60) == b"answered"
    assert echo.call(b"still here", timeout=60) == b"still here"
    assert "as told" in caplog.text


def test_a_caller_that_leaves_is_noticed_and_gets_no_answer(echo):
    echo = echo()
    future = echo.call.future(b"hold", timeout=60)
    wait_until(lambda: echo.held)
    future.cancel()
    wait_until(lambda: echo.cancelled == [b"hold"])
    echo.held[0].respond(b"too late")
    wait_until(lambda: echo.method.num_open == 0)
    assert echo.call(b"next", timeout=60) == b"next"


def test_a_passed_deadline_cancels_a_call_and_its_handler_knows(echo):
    echo = echo()
    begun_s = time.monotonic()
    assert echo.call.future(b"hold", timeout=0.5).code() is grpc.StatusCode.DEADLINE_EXCEEDED
    ended_s = time.monotonic()
    wait_until(lambda: echo.cancelled)
    # The wall clock, which carries deadlines, is read to the millisecond.
    assert begun_s + 0.4 < echo.held[0].deadline_s < ended_s + 0.1
    unlimited = echo.call.future(b"hold")
    wait_until(lambda: len(echo.held) == 2)
    assert echo.held[1].deadline_s is None
    echo.held[1].respond(b"at last")
    assert unlimited.result(60) == b"at last"


def test_a_call_whose_message_does_not_come_is_ended(echo):
    echo = echo(timeout_s=0.05)
    call = echo.stalled()
    wait_until(lambda: echo.blocked.unsent.cancel_overdue() or call.done())
    assert call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "message of the call did not arrive" in call.details()
    wait_until(lambda: echo.method.num_open == 0)
    assert echo.call(b"next", timeout=60) == b"next"


def test_of_too_many_calls_without_a_message_the_oldest_is_ended(echo):
    echo = echo(max_unsent=2)
    calls = []
    for number in range(1, 5):
        calls.append(echo.stalled())
        wait_until(lambda number=number: echo.method.num_open == min(number, 2))
    wait_until(lambda: calls[0].done() and calls[1].done())
    assert [call.done() for call in calls] == [True, True, False, False]
    assert {call.code() for call in calls[:2]} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert echo.call(b"next", timeout=60) == b"next"
    for call in calls:
        call.cancel()
    wait_until(lambda: echo.method.num_open == 0)


def test_a_call_not_admitted_is_answered_before_it_is_read(echo):
    def refuse(call):
        call.fail(grpc.StatusCode.PERMISSION_DENIED, "as told")
        return False

    echo = echo(admit=refuse)
    for call in (echo.stalled(), echo.call.future(b"x" * 1_000_000, timeout=60)):
        wait_until(call.done)
        assert call.code() is grpc.StatusCode.PERMISSION_DENIED
    wait_until(lambda: echo.method.num_open == 0)
    assert not echo.blocked.unsent


def test_an_answer_that_its_client_does_not_take_is_broken_off(echo):
    echo = echo(timeout_s=0.05)
    stopped = threading.Event()

    def messages():  # Its end is never sent, nor its answer of several megabytes fetched.
        yield b"x" * 3_000_000
        stopped.wait(60)

    # With a window of 64 KiB, and a connection that has it.
    options = [("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(echo.target, options) as channel:
        call = channel.stream_stream(METHOD)(messages(), timeout=60)
        wait_until(lambda: len(echo.blocked.unread) == 1)
        wait_until(lambda: echo.blocked.unread.cancel_overdue() or echo.method.num_open == 0)
        stopped.set()
        call.cancel()
    assert echo.call(b"next", timeout=60) == b"next"


@pytest.mark.parametrize("method", [METHOD, "/test.Service/Other"])
def test_a_call_without_its_message_or_method_is_refused(echo, method):
    echo = echo()
    call = echo.channel.stream_unary(method).future(iter(()), timeout=60)
    assert call.code() is grpc.StatusCode.UNIMPLEMENTED
    assert echo.call(b"next", timeout=60) == b"next"


@pytest.mark.parametrize("grace_s", [120, None, 0.1])
def test_a_stopping_server_waits_for_calls_as_long_as_its_grace(echo, grace_s):
    echo = echo()
    future = echo.call.future(b"hold", timeout=120)
    wait_until(lambda: echo.held)
    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(lambda: echo.server.stop(grace_s).wait(60))
        if grace_s != 120:
            assert future.code() in {grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE}
        assert not stopped.done()
        echo.held[0].respond(b"done")
        assert stopped.result(60)
    assert grace_s != 120 or future.result(60) == b"done"


def test_a_grpc_without_what_is_needed_is_recognised(monkeypatch):
    server = grpc.server(ThreadPoolExecutor(1))
    assert supports(server)
    monkeypatch.delattr("grpc._cython.cygrpc.ReceiveMessageOperation")
    assert not supports(server)
    monkeypatch.undo()
    del server._cy_server
    assert not supports(server)
