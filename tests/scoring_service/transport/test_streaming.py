"""ScoreStream: out of order, bounded, each prompt with its own fate."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest

from lengthwise.errors import InvalidPrompt, ScoringTimeout, ServiceOverloaded
from scoring_service.client import Score, ScoringClient
from scoring_service.proto import scoring_pb2 as pb
from scoring_service.server.rpc import SERVICE
from scoring_service.server.server import ScoringServer
from scoring_service.service.config import ServerConfig


def test_every_prompt_of_a_stream_is_answered_with_its_score(client):
    prompts = [f"essay {n} " * (n % 7 + 1) for n in range(100)]
    answers = dict(client.score_stream(prompts))
    assert sorted(answers) == list(range(100))
    assert [answers[n] for n in range(100)] == client.score_batch(prompts)


def test_a_bad_prompt_of_a_stream_fails_alone(client):
    answers = dict(client.score_stream(["yes", "", "x" * 1001, "no"]))
    assert [type(answers[n]) for n in range(4)] == [Score, InvalidPrompt, InvalidPrompt, Score]


@pytest.mark.parametrize("prompt", [3, "\ud800"])
def test_what_cannot_be_sent_ends_the_stream_after_the_scores_before_it(client, prompt):
    stream = client.score_stream(["yes", prompt, "no"])
    assert isinstance(next(stream)[1], Score)
    with pytest.raises(InvalidPrompt, match="a prompt is"):
        next(stream)


def test_what_reading_the_prompts_raises_reaches_the_caller(client):
    def prompts():
        yield "yes"
        raise OSError("the file ended early")

    with pytest.raises(OSError, match="the file ended early"):
        list(client.score_stream(prompts()))


def test_an_early_answer_does_not_wait_for_a_slow_one(server, client, monkeypatch):
    proceed = threading.Event()
    real = server.service.model.scorer.score

    def slow_for_long_prompts(prompts):
        if len(prompts[0]) > 20:
            proceed.wait(60)
        return real(prompts)

    monkeypatch.setattr(server.service.model.scorer, "score", slow_for_long_prompts)
    stream = client.score_stream(["poem " * 30, "yes"])
    place, _ = next(stream)
    assert place == 1
    proceed.set()
    assert next(stream)[0] == 0


def test_a_prompt_of_a_stream_has_its_own_deadline(server, client, monkeypatch):
    gate = threading.Event()
    real = server.service.model.scorer.score
    monkeypatch.setattr(server.service.model.scorer, "score", lambda p: (gate.wait(60), real(p))[1])
    answers = dict(client.score_stream([f"poem {n}" for n in range(8)], timeout_s=0.1))
    assert len(answers) == 8
    assert all(isinstance(a, ScoringTimeout | ServiceOverloaded) for a in answers.values())
    gate.set()
    assert isinstance(client.score("poem"), Score)


def test_the_deadline_of_a_streamed_prompt_runs_from_its_arrival(tiny_model, monkeypatch):
    config = ServerConfig(address="127.0.0.1:0", max_streams=1, num_runners=1, cache_entries=0)
    server = ScoringServer(tiny_model, config)
    server.start()
    arrived, gate, deadlines_s = threading.Semaphore(0), threading.Event(), []
    start_of, score_batch = server.service.start_of, server.service.score_batch

    def counted(prompt):
        arrived.release()
        return start_of(prompt)

    def held(prompts, target_model, call):
        gate.wait(60)
        deadlines_s.append(call.deadline_s)
        return score_batch(prompts, target_model, call)

    monkeypatch.setattr(server.service, "start_of", counted)
    monkeypatch.setattr(server.service, "score_batch", held)
    with ScoringClient(server.target) as client, ThreadPoolExecutor(1) as pool:
        prompts, begun_s = [f"poem {n}" for n in range(12)], time.monotonic()
        answers = pool.submit(lambda: dict(client.score_stream(prompts, timeout_s=600)))
        for _ in prompts:
            assert arrived.acquire(timeout=60)
        all_arrived_s = time.monotonic()
        gate.set()
        assert len(answers.result(60)) == 12
    server.stop()
    assert begun_s + 600 <= min(deadlines_s)
    assert max(deadlines_s) <= all_arrived_s + 600


def test_a_client_that_reads_slowly_is_not_read_ahead_for_ever(tiny_model):
    config = ServerConfig(address="127.0.0.1:0", max_stream_prompts=4)
    server = ScoringServer(tiny_model, config)
    server.start()
    held = threading.Event()
    real = server.service.score_batch
    server.service.score_batch = lambda *args: (held.wait(60), real(*args))[1]
    sent = itertools.count()

    def prompts():
        while next(sent) < 100_000:
            yield "essay " * 100

    with ScoringClient(server.target, timeout_s=60) as client:
        stream = client.score_stream(prompts())
        threading.Timer(0.5, held.set).start()  # Time in which it could send ever more.
        next(stream)
        assert next(sent) < 1000, "flow control should have stopped the client"
    server.stop()


def test_too_many_streams_are_refused(tiny_model):
    server = ScoringServer(tiny_model, ServerConfig(address="127.0.0.1:0", max_streams=1))
    server.start()
    gate = threading.Event()

    def endless():
        yield "yes"
        gate.wait(60)

    with ScoringClient(server.target, timeout_s=60) as client:
        first = client.score_stream(endless())
        next(first)
        with pytest.raises(ServiceOverloaded, match="1 streams"):
            next(client.score_stream(["no"]))
        gate.set()
        assert list(first) == []
        assert len(list(client.score_stream(["no"]))) == 1
    server.stop()


def test_a_cancelled_stream_leaves_nothing_behind(server):
    with ScoringClient(server.target, timeout_s=60) as client:
        for _ in range(20):
            stream = client.score_stream(["yes"] * 50)
            next(stream)
            stream.close()
    places = server.service._streams
    assert all(places.acquire(timeout=60) for _ in range(8))
    assert not places.acquire(blocking=False)
    assert server.service.batcher.num_queued == 0


def test_malformed_bytes_end_their_stream_with_invalid_argument(server):
    with grpc.insecure_channel(server.target) as channel:
        stream = channel.stream_stream(f"/{SERVICE}/ScoreStream")(iter([b"\xff\xff"]), timeout=60)
        with pytest.raises(grpc.RpcError) as failure:
            list(stream)
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@contextmanager
def one_silent_stream(model, **settings):
    """A client of a service with one place for streams, and its stream, silent after one prompt."""
    config = ServerConfig(address="127.0.0.1:0", max_streams=1, **settings)
    server = ScoringServer(model, config)
    server.start()
    gate = threading.Event()

    def then_silent():
        yield "yes"
        gate.wait(60)

    with ScoringClient(server.target, timeout_s=60) as client:
        idle = client.score_stream(then_silent())
        next(idle)
        yield client, idle, gate
    server.stop()


def test_an_idle_stream_is_ended_and_gives_its_place_back(tiny_model):
    with one_silent_stream(tiny_model, stream_idle_s=0.3) as (client, idle, gate):
        with pytest.raises(ScoringTimeout, match="silent too long"):
            next(idle)
        gate.set()
        assert len(list(client.score_stream(["no"]))) == 1


def test_the_most_silent_stream_gives_way_to_a_new_one(tiny_model):
    with one_silent_stream(tiny_model, arrival_timeout_s=0.05) as (client, idle, gate):
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            try:
                assert len(list(client.score_stream(["no"]))) == 1
                break
            except ServiceOverloaded:
                time.sleep(0.05)
        with pytest.raises(ScoringTimeout, match="silent too long"):
            next(idle)
        gate.set()


def test_a_stream_whose_answers_are_not_read_is_broken_off(tiny_model):
    config = ServerConfig(
        address="127.0.0.1:0", max_streams=1, stream_idle_s=0.3, arrival_timeout_s=0.3
    )
    server = ScoringServer(tiny_model, config)
    server.start()
    request = pb.StreamRequest(id="x" * 200, prompt="yes").SerializeToString()
    options = [("grpc.http2.bdp_probe", 0)]
    with grpc.insecure_channel(server.target, options) as channel:
        # Answers to so many requests are more than the client's window of 64 KiB holds.
        call = channel.stream_stream(f"/{SERVICE}/ScoreStream")(iter([request] * 20_000))
        places = server.service._streams
        deadline_s = time.monotonic() + 60
        while places.acquire(blocking=False):  # Until the stream has its place.
            places.release()
            assert time.monotonic() < deadline_s
            time.sleep(0.005)
        assert places.acquire(timeout=60)
        places.release()
        call.cancel()
    server.stop()


def test_the_id_of_a_prompt_is_short(server):
    request = pb.StreamRequest(id="x" * 257, prompt="yes").SerializeToString()
    with grpc.insecure_channel(server.target) as channel:
        stream = channel.stream_stream(f"/{SERVICE}/ScoreStream")(iter([request]), timeout=60)
        with pytest.raises(grpc.RpcError, match="257 characters"):
            list(stream)
