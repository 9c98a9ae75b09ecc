"""ScoreStream: out of order, bounded, each prompt with its own fate."""

from __future__ import annotations

import itertools
import threading
import time

import grpc
import pytest

from scoring_service.client import Score, ScoringClient
from scoring_service.errors import InvalidPrompt, ScoringTimeout, ServiceOverloaded
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
            proceed.wait(5)
        return real(prompts)

    monkeypatch.setattr(server.service.model.scorer, "score", slow_for_long_prompts)
    stream = client.score_stream(["poem " * 30, "yes"])
    place, _ = next(stream)
    assert place == 1
    proceed.set()
    assert next(stream)[0] == 0


def test_a_prompt_of_a_stream_has_its_own_deadline(server, client, monkeypatch):
    real = server.service.model.scorer.score
    monkeypatch.setattr(
        server.service.model.scorer, "score", lambda p: (time.sleep(0.3), real(p))[1]
    )
    answers = dict(client.score_stream([f"poem {n}" for n in range(8)], timeout_s=0.1))
    late = [a for a in answers.values() if isinstance(a, ScoringTimeout | ServiceOverloaded)]
    begun_in_time = server.service.batcher.num_run_prompts
    assert len(answers) == 8
    assert len(late) == 8 - begun_in_time > 0


def test_the_deadline_of_a_streamed_prompt_runs_from_its_arrival(tiny_model, monkeypatch):
    config = ServerConfig(address="127.0.0.1:0", max_streams=1, num_runners=1, cache_entries=0)
    server = ScoringServer(tiny_model, config)
    server.start()
    real = tiny_model.scorer.score
    monkeypatch.setattr(tiny_model.scorer, "score", lambda p: (time.sleep(0.1), real(p))[1])
    with ScoringClient(server.target) as client:
        begun_s = time.monotonic()
        answers = dict(client.score_stream([f"poem {n}" for n in range(12)], timeout_s=0.25))
    server.stop()
    assert time.monotonic() - begun_s < 0.9, "all twelve runs would take 1.2 s"
    assert isinstance(answers[11], ScoringTimeout | ServiceOverloaded)


def test_a_client_that_reads_slowly_is_not_read_ahead_for_ever(tiny_model):
    config = ServerConfig(address="127.0.0.1:0", max_stream_prompts=4)
    server = ScoringServer(tiny_model, config)
    server.start()
    held = threading.Event()
    real = server.service.score_batch
    server.service.score_batch = lambda *args: (held.wait(5), real(*args))[1]
    sent = itertools.count()

    def prompts():
        while next(sent) < 100_000:
            yield "essay " * 100

    with ScoringClient(server.target) as client:
        stream = client.score_stream(prompts())
        threading.Timer(0.5, held.set).start()
        next(stream)
        assert next(sent) < 1000, "flow control should have stopped the client"
    server.stop()


def test_too_many_streams_are_refused(tiny_model):
    server = ScoringServer(tiny_model, ServerConfig(address="127.0.0.1:0", max_streams=1))
    server.start()
    gate = threading.Event()

    def endless():
        yield "yes"
        gate.wait(5)

    with ScoringClient(server.target) as client:
        first = client.score_stream(endless())
        next(first)
        with pytest.raises(ServiceOverloaded, match="1 streams"):
            next(client.score_stream(["no"]))
        gate.set()
        assert list(first) == []
        assert len(list(client.score_stream(["no"]))) == 1
    server.stop()


def test_a_cancelled_stream_leaves_nothing_behind(server):
    with ScoringClient(server.target) as client:
        for _ in range(20):
            stream = client.score_stream(["yes"] * 50)
            next(stream)
            stream.close()
    deadline_s = time.monotonic() + 5
    while server.service._streams.num_free < 8 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert server.service._streams.num_free == 8
    assert server.service.batcher.num_queued == 0


def test_malformed_bytes_end_their_stream_with_invalid_argument(server):
    with grpc.insecure_channel(server.target) as channel:
        stream = channel.stream_stream(f"/{SERVICE}/ScoreStream")(iter([b"\xff\xff"]), timeout=5)
        with pytest.raises(grpc.RpcError) as failure:
            list(stream)
    assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
