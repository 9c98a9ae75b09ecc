"""Trouble of a service: garbage, slow and vanished clients, restarts, clock jumps."""

import os
import random
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lengthwise.child_processes import free_port, started
from scoring_service.client import Score
from scoring_service.client.breaker import CircuitBreaker
from scoring_service.client.fail_open import FailOpenScorer
from scoring_service.proto import scoring_pb2 as pb
from scoring_service.proto.scoring_pb2_grpc import ScoringServiceStub
from tests.scoring_service.waiting import wait_until


@pytest.fixture
def process(tiny_bundle):
    """A server process: a function that starts it on a port, killing the one before."""
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "scoring_service", "serve", "--bundle"]
    command += [str(tiny_bundle.path), "--address", address]
    with ExitStack() as running:
        yield lambda: (running.enter_context(started(command, ready="serving "))[0], address)


def test_bytes_that_are_no_http_do_no_harm(server, client):
    rng = random.Random(1)
    host, _, port = server.target.rpartition(":")
    for number in range(100):
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" * (number % 2)
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(preface + rng.randbytes(rng.randrange(400)))
    assert isinstance(client.score("yes"), Score)


def test_more_calls_than_places_are_refused_and_health_answers(serve, tiny_model, monkeypatch):
    server = serve(max_concurrent_calls=2, cache_entries=0)
    gate = threading.Event()
    real = tiny_model.scorer.score
    monkeypatch.setattr(tiny_model.scorer, "score", lambda p: (gate.wait(60), real(p))[1])
    with grpc.insecure_channel(server.target) as channel:
        score = ScoringServiceStub(channel).Score
        rpcs = [score.future(pb.ScoreRequest(prompt=f"poem {n}"), timeout=60) for n in range(6)]
        wait_until(lambda: sum(rpc.done() for rpc in rpcs) >= 4)
        served = [rpc for rpc in rpcs if not rpc.done()]
        assert {rpc.code() for rpc in rpcs if rpc.done()} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        check = health_pb2_grpc.HealthStub(channel).Check
        serving = health_pb2.HealthCheckResponse.SERVING
        assert check(health_pb2.HealthCheckRequest(), timeout=60).status == serving
        gate.set()
        assert [rpc.code() for rpc in served] == [grpc.StatusCode.OK] * 2


@pytest.mark.slow
def test_a_server_killed_under_load_costs_only_scores(process):
    server, target = process()
    breaker = CircuitBreaker(open_s=0.1, max_open_s=0.3)
    scorer, stop = FailOpenScorer(target, budget_s=5.0, breaker=breaker), threading.Event()

    def ask(number: int) -> None:
        while not stop.is_set():
            if scorer.score(f"essay {number} {time.monotonic()}") is None:
                time.sleep(0.01)

    def wait_for_more(outcome: str) -> None:
        before = scorer.counts[outcome]
        wait_until(lambda: scorer.counts[outcome] >= before + 10)

    with scorer, ThreadPoolExecutor(8) as pool, ExitStack() as ended:
        ended.callback(stop.set)  # after a failure, too: the pool waits for its threads
        callers = [pool.submit(ask, number) for number in range(8)]
        wait_for_more("scored")
        os.kill(server.pid, signal.SIGKILL)
        server.wait()
        wait_for_more("breaker_open")
        process()
        wait_for_more("scored")
        stop.set()
        for caller in callers:
            caller.result(60)


@pytest.mark.parametrize("jump_s", [-1e9, 3600.0])
def test_a_wall_clock_that_jumps_during_a_call_changes_nothing(server, client, monkeypatch, jump_s):
    real_time, real_score = time.time, server.service.model.scorer.score
    one_at_a_time = threading.Lock()  # Two runs at once would restore each other's clock.

    def score_while_the_clock_jumps(prompts):
        with one_at_a_time, monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: real_time() + jump_s)
            time.sleep(0.05)
            return real_score(prompts)

    monkeypatch.setattr(server.service.model.scorer, "score", score_while_the_clock_jumps)
    assert isinstance(client.score(f"poem {jump_s}"), Score)
    assert len(client.score_batch([f"essay {n} {jump_s}" for n in range(8)])) == 8
