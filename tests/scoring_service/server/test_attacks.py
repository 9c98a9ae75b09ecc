"""One hostile client must not take the service from the others: each attack for a second.

`make soak` runs all of them for ten minutes. No time is asserted: other processes take cores.
"""

import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from benchmarks.soak.service import soak
from scoring_service.client import Score, ScoringClient
from scoring_service.proto import scoring_pb2 as pb
from scoring_service.server.rpc import SERVICE
from tests.scoring_service import attacks
from tests.scoring_service.waiting import no_messages, rss_bytes, wait_until

EVERY = list(attacks.ATTACKS.values())


@pytest.mark.parametrize(
    "chosen",
    [[attacks.batches], [attacks.refused_calls], pytest.param(EVERY, marks=pytest.mark.slow)],
)
def test_attacks_cost_honest_callers_nothing_and_have_an_end(tiny_bundle, chosen):
    with attacks.serving(tiny_bundle) as (process, target), ThreadPoolExecutor(8) as pool:
        with attacks.honest_callers(target, timeout_s=60) as honest:
            list(pool.map(lambda attack: attack(target, 1.0), chosen))
        assert honest.scored > 0
        assert honest.failed == 0, honest.errors[:3]
        assert rss_bytes(process.pid) < 300e6
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_calls_that_were_cancelled_do_not_close_a_connection(server, monkeypatch):
    """A client under load cancels many calls at their deadline, and sends further ones."""
    entered, proceed = threading.Event(), threading.Event()
    real = server.service.begin

    def hanging(*call):
        entered.set()
        proceed.wait(60)
        return real(*call)

    with grpc.insecure_channel(server.target) as channel:
        score = channel.unary_unary(f"/{SERVICE}/Score")
        request = pb.ScoreRequest(prompt="yes").SerializeToString()
        score(request, timeout=60)
        monkeypatch.setattr(server.service, "begin", hanging)
        held = score.future(request, timeout=60)
        assert entered.wait(60)  # On the thread that serves all calls.
        for _ in range(3):
            burst = [score.future(request, timeout=0.2) for _ in range(200)]
            assert {call.code() for call in burst} == {grpc.StatusCode.DEADLINE_EXCEEDED}
        last = score.future(request, timeout=60)
        proceed.set()
        assert held.code() is last.code() is grpc.StatusCode.OK


def test_stalled_calls_take_no_place_of_a_score_and_are_ended(serve):
    server = serve(max_concurrent_calls=2, max_arriving_calls=8, arrival_timeout_s=0.3)
    with ThreadPoolExecutor(1) as pool, ScoringClient(server.target, timeout_s=60) as client:
        attack = pool.submit(attacks.stalled_calls, server.target, 1.0, calls=90)
        asked = 0
        while not attack.done():
            assert isinstance(client.score(f"poem {asked}"), Score)
            assert client.info().name == "tiny"
            assert isinstance(client.score_batch([f"essay {asked}"])[0], Score)
            asked += 1
        attack.result()
    assert asked
    wait_until(lambda: not any(method.num_open for method in server._direct))


def connect(target, number):
    host, _, port = target.rpartition(":")
    return [socket.create_connection((host, int(port)), timeout=60) for _ in range(number)]


def ended(connection):
    """Return whether the other end has closed; read all that it has sent."""
    connection.setblocking(False)
    try:
        while connection.recv(1000):
            pass
    except OSError as error:
        return not isinstance(error, BlockingIOError)
    return True


def test_a_connection_that_says_nothing_is_closed(serve):
    server = serve(arrival_timeout_s=0.2)
    silent = connect(server.target, 100)
    with ScoringClient(server.target, timeout_s=60) as client:
        assert isinstance(client.score("yes"), Score)
    for connection in silent:
        while connection.recv(1000):  # The server's own preface, then the end.
            pass
        connection.close()


def test_connections_beyond_the_limit_close_and_others_go_on(serve):
    server = serve(max_connections=5)
    with ScoringClient(server.target, timeout_s=60) as client:
        assert isinstance(client.score("yes"), Score)
        crowd = connect(server.target, 20)
        wait_until(lambda: sum(map(ended, crowd)) >= 15)
        for connection in crowd:
            connection.close()
        assert isinstance(client.score("no"), Score)


def test_no_prompt_is_read_on_the_thread_that_serves_all_calls(serve, tiny_model, monkeypatch):
    server = serve()
    real, held, gate = tiny_model.tokenizer.tokenize, threading.Event(), threading.Event()

    def slow_for_large(prompts):
        if len(prompts[0]) > 1000:
            held.set()
            gate.wait(60)
        return real(prompts)

    monkeypatch.setattr(tiny_model.tokenizer, "tokenize", slow_for_large)
    with ScoringClient(server.target, timeout_s=60) as client, ThreadPoolExecutor(1) as pool:
        large = pool.submit(client.score, attacks.HEAVY_TEXTS["emoji"])
        assert held.wait(60)
        assert isinstance(client.score("yes"), Score)
        gate.set()
        assert isinstance(large.result(60), Score)


@pytest.mark.parametrize("name", ["Score", "ScoreBatch", "Report", "Info"])
def test_a_stop_does_not_wait_for_a_call_without_its_message(serve, name):
    server = serve(drain_grace_s=600)
    gate = threading.Event()
    with grpc.insecure_channel(server.target) as channel:
        call = channel.stream_unary(f"/{SERVICE}/{name}").future(no_messages(gate), timeout=60)
        wait_until(lambda: server._blocked.unsent)
        server.stop()
        gate.set()
        assert call.code() is not grpc.StatusCode.OK


@pytest.mark.slow
def test_all_attacks_together_lose_no_honest_call():
    found = soak(6.0)
    assert found["failed"] == 0, found
    assert found["exit_status"] == 0, found
    assert found["scored"] > 0
    assert found["peak_mb"] < 300
